"""Engines with media, on an invented modality: points, each a vector of three numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import greedy, rig_of
from points_rig import Points, cloud, expected, points_registry, prompt_of, run
from safetensors.torch import load_file, save_file
from torch import Tensor

from quire.errors import BadRequest, CheckpointError, PluginError
from quire.params.sampling import SamplingParams
from quire.records import Registry
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.types import Media, Prompt

# --- what the model computes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{}, {"max_num_batched_tokens": 3}, {"max_num_batched_tokens": 512, "page_size": 4}]
)
def test_logits_equal_those_of_inputs_embeds_however_the_prompt_is_cut(
    folder: Path, found: Registry, prompts: list[Prompt], reference: Any, settings: dict[str, int]
) -> None:
    with rig_of(folder, found, **settings) as rig:
        ids = [rig.add(prompt, greedy(6, ignore_eos=True, logprobs=0)) for prompt in prompts]
        answers = rig.drain()
    for request_id, prompt in zip(ids, prompts, strict=True):
        answer, wanted = answers[request_id, 0], expected(reference, prompt, 6)
        assert answer.token_ids == [token for token, _ in wanted]
        assert [entry.logprob for entry in answer.logprobs] == pytest.approx([p for _, p in wanted], abs=1e-4)


def test_media_change_the_answer(folder: Path, found: Registry, inputs: MultimodalProcessor) -> None:
    with rig_of(folder, found) as rig:
        first, second = run(rig, [prompt_of(inputs, folder, "<points>?", cloud(seed, 4)) for seed in (8, 9)])
    assert first != second


def test_an_answer_is_the_same_alone_in_a_batch_and_token_by_token(
    folder: Path, found: Registry, prompts: list[Prompt]
) -> None:
    with rig_of(folder, found, enable_prefix_caching=False) as rig:
        alone = [run(rig, [prompt])[0] for prompt in prompts]
        assert run(rig, prompts) == alone
        assert run(rig, [*prompts, *prompts[::-1]]) == alone + alone[::-1]
    with rig_of(folder, found, batch_invariant=True) as rig:
        assert run(rig, prompts) == alone


def test_a_medium_seen_before_is_found_in_the_cache_and_another_of_its_size_is_not(
    folder: Path, found: Registry, inputs: MultimodalProcessor
) -> None:
    with rig_of(folder, found, max_num_batched_tokens=64) as rig:
        same = [prompt_of(inputs, folder, "<points> end", cloud(1, 14)) for _ in range(2)]
        other = prompt_of(inputs, folder, "<points> end", cloud(2, 14))
        assert same[0].token_ids == other.token_ids
        answers, cached, runs = [], [], []
        for prompt in (same[0], other, same[1]):
            Points.runs = 0
            request_id = rig.add(prompt, greedy(4))
            deltas = rig.drain()[request_id, 0].deltas
            answers.append([token for delta in deltas for token in delta.token_ids])
            cached.append(deltas[0].num_cached_tokens)
            runs.append(Points.runs)
    assert cached == [0, 0, 16]
    assert runs == [1, 1, 0]
    assert answers[0] == answers[2] != answers[1]


def test_a_cache_hit_that_ends_within_a_medium_computes_the_rest_of_it(
    folder: Path, found: Registry, inputs: MultimodalProcessor, reference: Any
) -> None:
    prompt = prompt_of(inputs, folder, "<points>", cloud(3, 11))
    with rig_of(folder, found, page_size=4) as rig:
        run(rig, [prompt])
        request_id = rig.add(prompt, greedy(8, ignore_eos=True))
        answer = rig.drain()[request_id, 0]
    assert answer.deltas[0].num_cached_tokens == 8
    assert answer.token_ids == [token for token, _ in expected(reference, prompt, 8)]


@pytest.mark.parametrize("settings", [{"preemption": "recompute"}, {"preemption": "swap", "swap_space": 0.01}])
def test_preemption_changes_nothing(
    folder: Path, found: Registry, prompts: list[Prompt], reference: Any, settings: dict[str, Any]
) -> None:
    with rig_of(folder, found, num_pages=5, enable_prefix_caching=False, max_num_batched_tokens=7, **settings) as rig:
        ids = [rig.add(prompt, greedy(12, ignore_eos=True)) for prompt in prompts]
        answers = rig.drain()
        stats = rig.engine.stats()
        towers = rig.engine._runner._towers
        assert not towers._pending
    assert stats.num_preemptions_recompute_total + stats.num_preemptions_swap_total > 0
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert answers[request_id, 0].token_ids == [token for token, _ in expected(reference, prompt, 12)]


def test_forks_of_a_prompt_with_media_are_the_same_however_it_is_cut(
    folder: Path, found: Registry, prompts: list[Prompt]
) -> None:
    answers = []
    for settings in ({"max_num_batched_tokens": 5}, {"max_num_batched_tokens": 512, "num_pages": 6}):
        with rig_of(folder, found, **settings) as rig:
            params = SamplingParams(n=3, seed=5, temperature=1.0, max_tokens=9, ignore_eos=True)
            request_id = rig.add(prompts[4], params)  # whose last position is a medium's: each fork computes it
            found_now = rig.drain()
            answers.append([found_now[request_id, i].token_ids for i in range(3)])
    assert answers[0] == answers[1]
    assert len({tuple(answer) for answer in answers[0]}) > 1


# --- what goes wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("points", "said"),
    [
        (torch.full((6, 3), 13.0), r"'made': points that became 6 tokens needs rows of shape \[6, 64\].*\[1, 64\]"),
        (torch.full((6, 3), torch.nan), "'made' failed: ArithmeticError: a point lies nowhere"),
    ],
)
def test_a_tower_that_fails_fails_its_request_only_and_leaves_nothing_in_the_cache(
    folder: Path, found: Registry, inputs: MultimodalProcessor, prompts: list[Prompt], points: Tensor, said: str
) -> None:
    bad = prompt_of(inputs, folder, "some text in front <points> and behind", points)
    with rig_of(folder, found, max_num_batched_tokens=9) as rig:
        (alone,) = run(rig, prompts[:1])
        broken = [rig.add(bad, greedy(8)) for _ in range(2)]
        fine = rig.add(prompts[0], greedy(8, ignore_eos=True))
        answers = rig.drain()
        assert answers[fine, 0].token_ids == alone
        for request_id in broken:
            kind, message = answers[request_id, 0].last.error or ("", "")
            assert kind == "PluginFailed"
            assert re.search(said, message)
        assert not rig.engine._runner._towers._pending


def test_media_that_are_out_of_place_are_refused(folder: Path, found: Registry) -> None:
    def medium(start: int, length: int = 2, modality: str = "points") -> Media:
        return Media(modality=modality, start=start, length=length, digest="d", tensors={"points": cloud(1, length)})

    with rig_of(folder, found) as rig:
        for media in ([medium(3)], [medium(-1)], [medium(0), medium(1)], [medium(1), medium(-1)], [medium(0, 0)]):
            with pytest.raises(BadRequest, match="within the 4 tokens"):
                rig.add(Prompt(token_ids=(1, 2, 3, 4), media=tuple(media)))
        with pytest.raises(BadRequest, match="takes text and points, not image"):
            rig.add(Prompt(token_ids=(1, 2, 3), media=(medium(0, modality="image"),)))


def test_weights_of_the_tower_come_from_the_checkpoint_and_none_may_lack(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    del tensors["point_embed.bias"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks 'point_embed\.bias'"), rig_of(tmp_path, points_registry()):
        pass


def test_a_mapper_for_an_architecture_without_a_tower_stops_the_start(folder: Path) -> None:
    with (
        pytest.raises(PluginError, match="'made' maps points for PointsForCausalLM, an architecture without a tower"),
        rig_of(folder, points_registry(tower=None)),
    ):
        pass


def test_a_tower_that_cannot_be_described_names_its_plugin(folder: Path) -> None:
    with (
        pytest.raises(PluginError, match="'made' could not make a tower"),
        rig_of(folder, points_registry(tower=lambda c: c.no_such_field)),
    ):
        pass
