"""Qwen2-VL and Qwen2.5-VL; transformers, which places tokens in time and space by itself, is the oracle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_rig import greedy, rig_of
from qwen_vl_rig import (
    ASKED,
    TEXT,
    TWO,
    TWO_AND_A_HALF,
    Asked,
    Kit,
    expected,
    film,
    inputs_of,
    logprobs_of,
    picture,
    tiny,
)
from safetensors.torch import load_file

from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.records import Registry
from quire_models import TowerCall
from quire_plugins.vision.qwen_vl import NAMES

# --- what transformers computes ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ASKED)
def test_logits_and_tokens_are_those_of_transformers(kit: Kit, name: str) -> None:
    tokens, logprobs = expected(kit.tiny, ASKED[name])
    prompt = kit.prompt(ASKED[name])
    with rig_of(kit.folder, kit.found) as rig:
        request_id = rig.add(prompt, greedy(32, ignore_eos=True, logprobs=5, prompt_logprobs=5))
        answer = rig.drain()[request_id, 0]
    assert answer.token_ids == tokens
    entries = [*(answer.deltas[0].prompt_logprobs or ())[1:], *answer.logprobs]
    assert len(entries) == len(prompt.token_ids) + 31
    for entry, wanted in zip(entries, logprobs, strict=False):
        ids, found = zip(*entry.top, strict=True)
        assert found == pytest.approx(wanted[list(ids)].tolist(), abs=1e-4)


@pytest.mark.parametrize("size", [3, 16, 512])
def test_all_kinds_of_prompts_in_one_batch_and_chunks_that_end_within_pictures(kit: Kit, size: int) -> None:
    with rig_of(kit.folder, kit.found, max_num_batched_tokens=size, page_size=16) as rig:
        assert kit.tokens(rig, list(ASKED.values())) == kit.expected(list(ASKED.values()))


def test_pictures_seen_before_are_found_in_the_cache_and_others_of_their_size_are_not(kit: Kit) -> None:
    one, again = (Asked("<|image_pad|> end of it", [picture(1, 40, 40)]) for _ in range(2))
    other = Asked("<|image_pad|> end of it", [picture(2, 40, 40)])
    with rig_of(kit.folder, kit.found) as rig:
        assert kit.tokens(rig, [one, other]) == kit.expected([one, other])
        request_id = rig.add(kit.prompt(again), greedy(32, ignore_eos=True))
        answer = rig.drain()[request_id, 0]
        assert rig.engine.stats().num_media_encoded_total == 2
    assert answer.deltas[0].num_cached_tokens == 32
    assert answer.token_ids == kit.expected([one])[0]


@pytest.mark.parametrize("settings", [{"preemption": "recompute"}, {"preemption": "swap", "swap_space": 0.01}])
def test_preemption_changes_nothing(kit: Kit, settings: dict[str, Any]) -> None:
    asked = [ASKED[name] for name in ("one", "several", "both", "none", "video")]
    with rig_of(kit.folder, kit.found, num_pages=10, max_num_batched_tokens=17, **settings) as rig:
        assert kit.tokens(rig, asked) == kit.expected(asked)
        stats = rig.engine.stats()
    assert stats.num_preemptions_recompute_total + stats.num_preemptions_swap_total > 0


def test_each_token_computed_alone_gives_the_same(kit: Kit) -> None:
    asked = [ASKED[name] for name in ("one", "none", "odd video")]
    with rig_of(kit.folder, kit.found, batch_invariant=True) as rig:
        assert kit.tokens(rig, asked) == kit.expected(asked)


def test_forks_and_beams_go_on_from_where_the_picture_ends(kit: Kit) -> None:
    asked = ASKED["end"]
    drawn = SamplingParams(n=3, temperature=1.0, seed=1, max_tokens=12, logprobs=0, ignore_eos=True)
    with rig_of(kit.folder, kit.found) as rig:
        forks = rig.add(kit.prompt(asked), drawn)
        beams = rig.add(kit.prompt(asked), BeamSearchParams(beam_width=3, max_tokens=12, ignore_eos=True))
        answers = rig.drain()
    assert len({tuple(answer.token_ids) for answer in answers.values()}) == 6
    for index in range(3):
        fork, beam = answers[forks, index], answers[beams, index]
        wanted = logprobs_of(kit.tiny, asked, fork.token_ids)
        assert [entry.logprob for entry in fork.logprobs] == pytest.approx(wanted, abs=1e-4)
        assert beam.last.cumulative_logprob == pytest.approx(
            sum(logprobs_of(kit.tiny, asked, beam.token_ids)), abs=1e-3
        )


def test_text_after_a_long_video_stands_beyond_all_of_its_frames(kit: Kit) -> None:
    asked = Asked("see <|video_pad|> and so on", (), [film(3, 24, 16, 24)])  # more frames than a frame has squares
    prompt, inputs = kit.prompt(asked), inputs_of(asked)
    at = np.indices((12, 2, 3)).reshape(3, -1) * np.array([[2 if kit.timed else 1], [1], [1]])
    after = at.max() + 5 + np.arange(10)
    positions = np.concatenate([np.tile(np.arange(4), (3, 1)), at + 4, np.tile(after, (3, 1))], 1)
    with torch.inference_mode():
        logits = kit.tiny.model(**inputs, position_ids=torch.from_numpy(positions)[:, None]).logits[0]
    wanted = logits.log_softmax(-1)[range(len(logits) - 1), inputs["input_ids"][0, 1:]]
    with rig_of(kit.folder, kit.found) as rig:
        request_id = rig.add(prompt, greedy(1, prompt_logprobs=0))
        entries = rig.drain()[request_id, 0].deltas[0].prompt_logprobs or ()
    assert [entry.logprob for entry in entries if entry] == pytest.approx(wanted.tolist(), abs=1e-4)


@pytest.mark.parametrize("architecture", [TWO, TWO_AND_A_HALF])
def test_the_context_may_be_stretched_and_the_head_tied(architecture: str, tmp_path: Path, found: Registry) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    made = tiny(architecture, tmp_path, tied=True, rope_parameters={**TEXT["rope_parameters"], **yarn})
    kit = Kit(made, found)
    asked = [Asked(one.text, one.pictures, one.films) for one in (ASKED["one"], ASKED["both"])]
    with rig_of(tmp_path, found) as rig:
        assert kit.tokens(rig, asked) == kit.expected(asked)


# --- checkpoints -------------------------------------------------------------------------------------


def test_tensors_may_be_called_as_in_published_folders_or_as_in_transformers(kit: Kit) -> None:
    published = load_file(kit.folder / "model.safetensors")
    assert "visual.patch_embed.proj.weight" in published
    assert "model.layers.0.self_attn.q_proj.weight" in published
    newer = kit.tiny.model.state_dict()
    assert "model.visual.patch_embed.proj.weight" in newer
    assert {NAMES.rename(name) for name in newer} == {NAMES.rename(name) for name in published}


def test_published_configs_have_the_settings_of_the_text_half_among_their_own(kit: Kit, tmp_path: Path) -> None:
    for file in kit.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((kit.folder / "config.json").read_text())
    rope = config["text_config"].pop("rope_parameters")
    older = {
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]},
    }
    kind = config["model_type"]
    flat = {**config.pop("text_config"), **config, **older, "model_type": kind}
    (tmp_path / "config.json").write_text(json.dumps(flat))
    with rig_of(tmp_path, kit.found) as rig:
        assert kit.tokens(rig, [ASKED["one"]]) == kit.expected([ASKED["one"]])


def test_the_example_that_memory_is_measured_by_becomes_the_rows_it_says(kit: Kit) -> None:
    with rig_of(kit.folder, kit.found) as rig, torch.inference_mode():
        tower = rig.engine.loaded.module.tower
        item, num_rows = tower.dummy_input()
        (rows,) = tower([item], TowerCall("cpu"))
    assert len(rows) == num_rows == 1296
