"""Gemma 3 with pictures against transformers, on tiny random models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_rig import Rig, greedy, rig_of
from gemma3_rig import PROMPTS, Model
from llava_rig import our_logits, picture

from quire.errors import BadRequest
from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.records import Registry
from quire.types import Prompt


def test_logits_are_those_of_transformers(model: Model, found: Registry) -> None:
    with rig_of(model.folder, found) as rig:
        loaded = rig.engine.loaded
        for text, pictures in PROMPTS:
            prompt = model.prompt(found, loaded.info, text, *pictures)
            torch.testing.assert_close(our_logits(loaded, prompt), model.logits(prompt, *pictures), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("max_tokens", "page_size"), [(16, 4), (17, 16), (33, 4), (600, 16)])
def test_greedy_tokens_are_those_of_transformers_in_one_batch_however_it_is_cut(
    model: Model, found: Registry, asked: list[tuple[Prompt, list[int]]], max_tokens: int, page_size: int
) -> None:
    """Pages of 16 are those that compiled ops take."""
    settings = {"max_num_batched_tokens": max_tokens, "page_size": page_size, "num_pages": 400}
    with rig_of(model.folder, found, **settings) as rig:
        for _ in range(2):  # the second time pages are found
            ids = [rig.add(prompt, greedy(32, ignore_eos=True)) for prompt, _ in asked]
            answers = rig.drain()
            assert [answers[request_id, 0].token_ids for request_id in ids] == [tokens for _, tokens in asked]
        assert rig.engine.stats().num_cached_tokens_total > 0


# --- what else a seq may go through -------------------------------------------------------------------


def seen(narrow: Model, found: Registry, rig: Rig, text: str = "see <start_of_image>, it is", seed: int = 1) -> Prompt:
    return narrow.prompt(found, rig.engine.info, text, picture(seed))


def test_a_prefix_that_is_found_may_end_inside_a_picture(narrow: Model, found: Registry, rig: Rig) -> None:
    first, second = (seen(narrow, found, rig, f"see it <start_of_image>{end}") for end in ("? A question", "! Another"))
    medium = first.media[0]
    for prompt, cached in ((first, 0), (second, 24)):
        request_id = rig.add(prompt, greedy(32, ignore_eos=True))
        answer = rig.drain()[request_id, 0]
        assert answer.deltas[0].num_cached_tokens == cached
        assert answer.token_ids == narrow.greedy(prompt, picture(1))
    assert medium.start < 24 < medium.start + medium.length


@pytest.mark.parametrize("swap_space", [0.0, 0.01])
def test_answers_are_those_of_transformers_when_seqs_are_preempted(
    narrow: Model, found: Registry, swap_space: float
) -> None:
    with rig_of(narrow.folder, found, num_pages=10, max_num_batched_tokens=23, swap_space=swap_space) as rig:
        prompts = [seen(narrow, found, rig, f"{'so ' * i}<start_of_image> {i}", i % 3) for i in range(6)]
        ids = [rig.add(prompt, greedy(32, ignore_eos=True)) for prompt in prompts]
        answers = rig.drain()
        for i, (request_id, prompt) in enumerate(zip(ids, prompts, strict=True)):
            assert answers[request_id, 0].token_ids == narrow.greedy(prompt, picture(i % 3))
        stats = rig.engine.stats()
        assert stats.num_preemptions_swap_total if swap_space else stats.num_preemptions_recompute_total


def ending_with_it(prompt: Prompt) -> Prompt:
    """The prompt as far as its picture goes, and no further."""
    medium = prompt.media[-1]
    return replace(prompt, token_ids=prompt.token_ids[: medium.start + medium.length])


@pytest.mark.parametrize("caching", [True, False])
def test_several_answers_are_the_same_as_one_also_where_a_picture_ends_the_prompt(
    narrow: Model, found: Registry, caching: bool
) -> None:
    with rig_of(narrow.folder, found, max_num_batched_tokens=23, enable_prefix_caching=caching) as rig:
        whole = seen(narrow, found, rig)
        for prompt in (whole, ending_with_it(whole)):
            nearly = SamplingParams(temperature=1e-5, seed=1, max_tokens=12, ignore_eos=True, n=3)
            request_id = rig.add(prompt, nearly)
            answers = rig.drain()
            expected = narrow.greedy(prompt, picture(1), max_new_tokens=12)
            assert [answers[request_id, i].token_ids for i in range(3)] == [expected] * 3


def test_beams_are_those_of_transformers(narrow: Model, found: Registry, rig: Rig) -> None:
    prompt = seen(narrow, found, rig)
    request_id = rig.add(prompt, BeamSearchParams(beam_width=3, max_tokens=12, ignore_eos=True))
    answers = rig.drain()
    assert answers[request_id, 0].token_ids == narrow.greedy(prompt, picture(1), num_beams=3, max_new_tokens=12)


def test_logprobs_of_the_prompt_are_those_of_transformers(narrow: Model, found: Registry, rig: Rig) -> None:
    prompt = seen(narrow, found, rig)
    request_id = rig.add(prompt, greedy(4, ignore_eos=True, prompt_logprobs=0))
    scored = rig.drain()[request_id, 0].deltas[0].prompt_logprobs or ()
    theirs = narrow.logits(prompt, picture(1)).log_softmax(-1)[:-1]
    theirs = theirs.gather(1, torch.tensor(prompt.token_ids[1:])[:, None])[:, 0]
    ours = torch.tensor([entry.logprob for entry in scored[1:] if entry is not None])
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_batch_invariant_engines_give_the_same_bits_in_any_company(narrow: Model, found: Registry) -> None:
    bits = []
    for settings in ({"max_num_batched_tokens": 512}, {"max_num_batched_tokens": 17}):
        with rig_of(narrow.folder, found, dtype="bfloat16", batch_invariant=True, page_size=16, **settings) as rig:
            prompt = seen(narrow, found, rig, "some text in front of <start_of_image>, and behind")
            for company in (0, 3, 0):  # the last from the prefix cache
                for i in range(company):
                    rig.add(seen(narrow, found, rig, f"{i} <start_of_image>", i), greedy(9, ignore_eos=True))
                request_id = rig.add(prompt, greedy(9, ignore_eos=True, logprobs=2))
                answer = rig.drain()[request_id, 0]
                bits.append([(entry.token_id, entry.logprob) for entry in answer.logprobs])
            assert rig.engine.stats().num_cached_tokens_total > 0
    assert all(each == bits[0] for each in bits)


@pytest.mark.parametrize(("kind", "share"), [("int8", 0.1), ("int4", 0.4)])
def test_quantized_pages_tell_nearly_the_same(tmp_path: Path, found: Registry, kind: str, share: float) -> None:
    logprobs, wide = [], Model(tmp_path, head_dim=32)
    for each in ("auto", kind):
        settings = {"dtype": "bfloat16", "kv_cache_dtype": each, "page_size": 16, "max_num_batched_tokens": 64}
        with rig_of(wide.folder, found, **settings) as rig:
            request_id = rig.add(seen(wide, found, rig), greedy(1, prompt_logprobs=0))
            scored = rig.drain()[request_id, 0].deltas[0].prompt_logprobs or ()
            logprobs.append(torch.tensor([entry.logprob for entry in scored[1:] if entry is not None]))
    assert 0 < (logprobs[0] - logprobs[1]).abs().mean() < share * logprobs[0].std()


# --- what does not fit --------------------------------------------------------------------------------


def test_a_picture_larger_than_a_step_is_refused_and_text_is_not(narrow: Model, found: Registry) -> None:
    with rig_of(narrow.folder, found, max_num_batched_tokens=15) as rig:
        with pytest.raises(BadRequest, match=r"a medium of 16 tokens.* at most --max-num-batched-tokens \(15\) can be"):
            rig.add(seen(narrow, found, rig))
        assert rig.tokens([list(b"text that is longer than that")], greedy(3))
