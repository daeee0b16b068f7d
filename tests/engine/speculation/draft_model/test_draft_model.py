"""A draft model changes no answer, whatever requests ask for, and holds nothing of sequences that ended."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from draft_model_rig import draft_model_rig, num_pages_used
from engine_rig import Answer, Rig, greedy, random_ids, rig_of
from varied_requests import PROMPTS, SETTINGS, answered, shown

from quire.engine.speculation.draft_model.model_drafter import ModelDrafter
from quire.params.sampling import SamplingParams
from quire.records import Draft, DraftQuery
from quire_testing.tiny import tiny_llama


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("other"), seed=8, num_hidden_layers=1)


@pytest.fixture(scope="module")
def expected(plain: Rig) -> list[dict[int, Answer]]:
    return answered(plain)


# drafts that may be wrong with all settings, right ones with every other
WAYS = [(False, settings) for settings in SETTINGS] + [(True, settings) for settings in SETTINGS[::2]]


@pytest.mark.parametrize(("same", "settings"), WAYS, ids=str)
def test_answers_are_those_without_a_draft_model(
    folder: Path, other: Path, expected: list[dict[int, Answer]], same: bool, settings: dict[str, Any]
) -> None:
    with draft_model_rig(folder, folder if same else other, **settings) as (rig, drafter):
        assert shown(answered(rig)) == shown(expected)
        rig.engine.step()
        assert num_pages_used(drafter) == 0
        assert rig.engine.stats().num_pages_used == 0


@pytest.mark.parametrize(
    "params",
    [
        greedy(41, ignore_eos=True),
        SamplingParams(temperature=1.0, seed=5, max_tokens=41, ignore_eos=True),
        SamplingParams(temperature=1.3, seed=6, max_tokens=41, ignore_eos=True, top_k=30, top_p=0.9, min_p=0.01),
    ],
    ids=["greedy", "seeded", "filtered"],
)
def test_drafts_of_the_same_model_are_all_accepted(folder: Path, plain: Rig, params: SamplingParams) -> None:
    wanted = plain.tokens(PROMPTS[:3], params)
    with draft_model_rig(folder, folder, max_num_batched_tokens=256) as (rig, _):
        assert rig.tokens(PROMPTS[:3], params) == wanted
        assert rig.engine.stats().num_steps_total == 1 + 8


def test_sequences_of_different_lengths_are_drafted_for_together(folder: Path, plain: Rig) -> None:
    params = [SamplingParams(temperature=0.9 * (i % 2), seed=i, max_tokens=6 + 7 * i) for i in range(len(PROMPTS))]
    wanted = plain.tokens(PROMPTS, params)
    with draft_model_rig(folder, folder, max_num_batched_tokens=256, max_num_seqs=64) as (rig, _):
        assert rig.tokens(PROMPTS, params) == wanted
        assert rig.engine.stats().num_steps_total <= 1 + math.ceil((6 + 7 * (len(PROMPTS) - 1)) / 5) + 1


def test_requests_that_are_aborted_leave_no_pages(folder: Path, other: Path) -> None:
    with draft_model_rig(folder, other, max_num_seqs=6, max_num_batched_tokens=64) as (rig, drafter):
        for i in range(300):
            rig.add(PROMPTS[i % len(PROMPTS)], SamplingParams(max_tokens=2 + i % 9, seed=i, ignore_eos=True))
        most, step = 0, 0
        while rig.engine.has_work:
            rig.engine.step()
            most, step = max(most, num_pages_used(drafter)), step + 1
            rig.engine.abort(f"r{3 * step}")
        assert most > 10
        assert num_pages_used(drafter) == 0
        assert len(drafter._cache) == len(drafter._batch) == 0


def query(seq_id: int, token_ids: Sequence[int], prompt_len: int, max_drafts: int = 4) -> DraftQuery:
    return DraftQuery(seq_id, token_ids, prompt_len, max_drafts, greedy(), seed=1)


def proposed(drafter: ModelDrafter, *queries: DraftQuery) -> list[list[int]]:
    found: Sequence[Draft] = drafter.propose(queries)
    return [list(draft.token_ids) for draft in found]


def test_a_long_prompt_is_fed_over_several_steps_beside_the_drafts_of_others(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "long", max_position_embeddings=2048)
    long, short = random_ids(random.Random(5), 1400), PROMPTS[0]
    settings: dict[str, Any] = {"num_pages": 225, "max_num_batched_tokens": 2048}
    with rig_of(folder, **settings) as rig:
        wanted = rig.tokens([long, short], greedy(4, ignore_eos=True))
    with draft_model_rig(folder, folder, **settings) as (_, drafter):
        steps = [proposed(drafter, query(1, long, len(long)), query(2, short, len(short))) for _ in range(3)]
        assert [bool(drafts[0]) for drafts in steps] == [False, False, True]
        assert [drafts[1] for drafts in steps] == [wanted[1]] * 3
        assert steps[2][0] == wanted[0]


def test_a_sequence_without_pages_gets_no_drafts_until_others_end(folder: Path) -> None:
    with draft_model_rig(folder, folder, num_pages=4) as (_, drafter):  # two sequences
        first, second, third = (query(i, PROMPTS[i][:4] * 5, 20) for i in range(3))
        drafts = proposed(drafter, first, second, third)
        assert [bool(each) for each in drafts] == [True, True, False]
        assert proposed(drafter, first, second, third) == drafts
        [alone] = proposed(drafter, third)  # the others are not asked for: one loses its pages
        assert alone
        assert len(drafter._cache) == 2
        drafter.end([0, 1, 2, 3])
        assert num_pages_used(drafter) == 0


def test_a_sequence_is_rolled_back_to_its_output(folder: Path, plain: Rig) -> None:
    prompt = PROMPTS[1]
    with draft_model_rig(folder, folder) as (_, drafter):
        tokens = list(prompt)
        [right] = proposed(drafter, query(1, tokens, len(prompt)))
        tokens += [*right[:2], (right[2] + 1) % 256, 9]  # two drafts are accepted
        [drafts] = proposed(drafter, query(1, tokens, len(prompt)))
        assert drafts == plain.tokens([tokens], greedy(4, ignore_eos=True))[0]
        assert proposed(drafter, query(1, tokens, len(prompt))) == [drafts]  # asked again without new tokens
        [fresh] = proposed(drafter, query(2, tokens, len(prompt)))
        assert fresh == drafts


def test_there_are_no_drafts_beyond_the_length_of_the_draft_model(folder: Path, plain: Rig) -> None:
    wanted = plain.tokens(PROMPTS[:2], greedy(60, ignore_eos=True))
    with draft_model_rig(folder, folder, {"max_model_len": 40}, max_num_batched_tokens=64) as (rig, drafter):
        assert rig.tokens(PROMPTS[:2], greedy(60, ignore_eos=True)) == wanted
        ids = wanted[0]
        assert [len(drafts) for drafts in proposed(drafter, query(7, ids[:38], 5), query(8, ids[:40], 5))] == [2, 0]
        assert proposed(drafter, query(9, list(range(60)), 5)) == [[]]


def test_a_forward_that_raises_costs_drafts_only(folder: Path, plain: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = plain.tokens(PROMPTS[:2], greedy(20))
    with draft_model_rig(folder, folder, max_num_batched_tokens=64) as (rig, drafter):
        compute, calls = drafter._compute, iter(range(10_000))

        def fails_sometimes(*args: Any) -> Any:
            if next(calls) % 7 == 3:
                raise RuntimeError("no")
            return compute(*args)

        monkeypatch.setattr(drafter, "_compute", fails_sometimes)
        assert rig.tokens(PROMPTS[:2], greedy(20)) == wanted
        assert next(calls) > 4
        rig.engine.step()
        assert num_pages_used(drafter) == 0


def test_distributions_of_drafts_are_those_they_were_drawn_from(folder: Path) -> None:
    with draft_model_rig(folder, folder) as (rig, drafter):
        drafter._sampler.wants_probs = True
        vocab = rig.engine.info.vocab_size
        prompt = PROMPTS[0]
        sampled = SamplingParams(temperature=0.8, seed=1, top_k=5, top_p=0.9)
        queries = [
            DraftQuery(1, prompt, len(prompt), 4, sampled, seed=1),
            query(2, prompt, len(prompt)),
            DraftQuery(3, prompt, len(prompt), 2, SamplingParams(temperature=1.0), seed=2),
        ]
        filtered, certain, whole = drafter.propose(queries)
        assert certain.probs is None
        assert filtered.probs is not None
        assert filtered.probs.shape == (4, vocab)
        assert whole.probs is not None
        assert whole.probs.shape == (2, vocab)
        assert torch.allclose(filtered.probs.sum(-1), torch.ones(4))
        assert ((filtered.probs > 0).sum(-1) <= 5).all()
        assert all(filtered.probs[i, token] > 0 for i, token in enumerate(filtered.token_ids))
        drafter.end([1, 2, 3])
        counts = torch.zeros(vocab)
        for seed in range(400):
            [draft] = drafter.propose([DraftQuery(seed, prompt, len(prompt), 1, sampled, seed=seed)])
            counts[draft.token_ids[0]] += 1
        assert (counts / 400 - filtered.probs[0]).abs().max() < 0.1
