"""Qwen2-VL and Qwen2.5-VL; transformers, which places tokens in time and space by itself, is the oracle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_rig import Rig, greedy, rig_of
from numpy.typing import NDArray
from qwen_vl_rig import TEXT, TWO, TWO_AND_A_HALF, Asked, Tiny, expected, film, inputs_of, logprobs_of, picture, tiny
from safetensors.torch import load_file

from quire import registry
from quire.errors import BadRequest
from quire.records import Context, Registry
from quire.sampling import BeamSearchParams, SamplingParams
from quire.testing import check_mapper
from quire.text.inputs import to_prompt
from quire.text.media import MediaInputs
from quire.text.tokenizer import Tokenizer
from quire.types import Prompt
from quire_models import TowerCall
from quire_plugins.qwen_vl import NAMES
from quire_plugins.qwen_vl_media import MapsPictures, MapsVideos

ASKED = {
    "none": Asked("a text without any pictures in it"),
    "one": Asked("What is <|image_pad|>?", [picture(1, 24, 40)]),
    "several": Asked(
        "a <|image_pad|> b <|image_pad|>, <|image_pad|>.", [picture(2, 8, 8), picture(3, 48, 32), picture(4, 20, 91)]
    ),
    "start": Asked("<|image_pad|> stands first", [picture(5, 32, 32)]),
    "end": Asked("the last is <|image_pad|>", [picture(12, 40, 24)]),
    "video": Asked("see <|video_pad|> move", (), [film(7, 6, 48, 40)]),
    "odd video": Asked("<|video_pad|>, three frames", (), [film(8, 3, 24, 16)]),
    "both": Asked(
        "<|image_pad|> or <|video_pad|> or <|image_pad|>",
        [picture(9, 16, 48), picture(1, 24, 40)],
        [film(2, 4, 32, 24)],
    ),
}


@pytest.fixture(scope="module")
def found() -> Registry:
    return registry.load(["qwen-vl"])


class Kit:
    """One of the models, and prompts as the engine takes them."""

    def __init__(self, made: Tiny, found: Registry) -> None:
        self.tiny, self.folder, self.found = made, made.folder, found
        self._tokenizer = Tokenizer.load(made.folder)
        self.architecture = type(made.model).__name__
        self.timed = self.architecture == TWO_AND_A_HALF
        with rig_of(made.folder, found) as rig:
            self.inputs = MediaInputs(found, rig.engine.info, self._tokenizer)

    def prompt(self, asked: Asked) -> Prompt:
        return to_prompt(asked.value, self._tokenizer, media_inputs=self.inputs)

    def tokens(self, rig: Rig, asked: Sequence[Asked], params: Any = None) -> list[list[int]]:
        ids = [rig.add(self.prompt(one), params or greedy(32, ignore_eos=True)) for one in asked]
        answers = rig.drain()
        for request_id in ids:
            assert answers[request_id, 0].last.finish_reason == "length", answers[request_id, 0].last
        return [answers[request_id, 0].token_ids for request_id in ids]

    def expected(self, asked: Sequence[Asked]) -> list[list[int]]:
        return [expected(self.tiny, one)[0] for one in asked]


@pytest.fixture(scope="module", params=[TWO, TWO_AND_A_HALF])
def kit(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, found: Registry) -> Kit:
    return Kit(tiny(request.param, tmp_path_factory.mktemp("qwen_vl")), found)


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
    with rig_of(kit.folder, kit.found, num_pages=40, max_num_batched_tokens=17, **settings) as rig:
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
        item, num_rows = tower.example()
        (rows,) = tower([item], TowerCall("cpu"))
    assert len(rows) == num_rows == 1296


# --- mappers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("modality", ["image", "video"])
def test_as_many_ids_as_rows(kit: Kit, modality: str) -> None:
    items = {"image": [picture(1, 9, 30), picture(2, 200, 100)], "video": [film(1, 5, 8, 8), [picture(3, 9, 30)] * 2]}
    (record,) = (
        record
        for record in kit.found.of("quire_input_mappers").values()
        if record.modality == modality and record.architecture == kit.architecture
    )
    config = type(kit.tiny.model.config)(**kit.tiny.model.config.to_dict())
    check_mapper(
        record, kit.found.of("quire_architectures")[kit.architecture], config, items[modality], folder=kit.folder
    )


class Filmed:
    """A video of which it is known which frames were asked for."""

    def __init__(self, num_frames: int, fps: float | None) -> None:
        self.num_frames, self.fps = num_frames, fps
        self.asked: list[int] = []

    def uniform(self, count: int) -> list[int]:
        return [i * self.num_frames // count for i in range(count)]

    def frames(self, numbers: Sequence[int]) -> NDArray[np.uint8]:
        self.asked = list(numbers)
        return np.stack([np.full((8, 8, 3), number, np.uint8) for number in numbers])


@pytest.mark.parametrize(
    ("filmed", "numbers", "times"),
    [
        (Filmed(100, 25.0), [0, 12, 25, 37, 50, 62, 75, 87], [0, 2, 4, 6]),  # two frames a second
        (Filmed(10, 10.0), [0, 2, 5, 7], [0, 1]),  # not fewer than four, which are half a second apart
        (Filmed(3, 30.0), [0, 1], [0]),
        (Filmed(1, 30.0), [0], [0]),
        (Filmed(6, None), [0, 1, 2, 3, 4, 5], [0, 2, 4]),  # nobody knows: as if two a second
    ],
)
def test_of_a_film_two_frames_a_second_are_seen_and_placed_by_the_second(
    tmp_path: Path, filmed: Filmed, numbers: list[int], times: list[int]
) -> None:
    context = context_of(tmp_path, preprocessor_config=TINY_SIZE)
    mapper = MapsVideos(context, timed=True)
    mapped = mapper.map(filmed)
    assert filmed.asked == numbers
    assert mapped.positions[0].tolist() == times
    assert MapsVideos(context, timed=False).map(filmed).positions[0].tolist() == list(range(len(times)))


def context_of(folder: Path, **files: dict[str, Any]) -> Context:
    for name, settings in files.items():
        (folder / f"{name}.json").write_text(json.dumps(settings))
    vision = {"patch_size": 4, "tokens_per_second": 2}
    config = {"image_token_id": 1, "video_token_id": 2, "vision_config": vision}
    return Context(config=config, folder=str(folder))


TINY_SIZE = {"size": {"shortest_edge": 64, "longest_edge": 64}}


@pytest.mark.parametrize(
    ("files", "pictures", "videos"),
    [
        ({}, 49, 1600),
        ({"preprocessor_config": TINY_SIZE}, 1, 1),
        ({"preprocessor_config": {"min_pixels": 64, "max_pixels": 64}}, 1, 1),
        ({"preprocessor_config": TINY_SIZE, "video_preprocessor_config": {"max_pixels": 3136, "min_pixels": 64}}, 1, 1),
        ({"processor_config": {"image_processor": TINY_SIZE, "video_processor": {"do_resize": True}}}, 1, 1600),
    ],
)
def test_sizes_come_from_the_files_of_a_processor(
    tmp_path: Path, files: dict[str, Any], pictures: int, videos: int
) -> None:
    context = context_of(tmp_path, **files)
    assert len(MapsPictures(context).map(picture(1, 8, 8)).ids) == pictures
    assert len(MapsVideos(context, timed=True).map(film(1, 2, 8, 8)).ids) == videos


@pytest.mark.parametrize(
    ("settings", "frames", "rows"),
    [
        ({}, 12, 6 * 6 * 6),
        ({"max_video_tokens": 100}, 12, 6 * 6 * 6),  # it is told how many, but not to share them out
        ({"cap_pixels_per_frame": True}, 12, 6 * 6 * 6),  # 128 000, which is enough
        ({"cap_pixels_per_frame": True, "max_video_tokens": 100}, 12, 6 * 3 * 3),  # 90 for 6: at most 15 a frame
        ({"cap_pixels_per_frame": True, "max_video_tokens": 100}, 2, 6 * 6),
        ({"cap_pixels_per_frame": True, "max_video_tokens": 1}, 12, 6 * 2 * 2),  # a frame has 4 at least
    ],
)
def test_a_video_may_have_so_many_tokens_that_its_frames_share(
    tmp_path: Path, settings: dict[str, Any], frames: int, rows: int
) -> None:
    size = {"size": {"shortest_edge": 4 * 64, "longest_edge": 40 * 64}}
    mapper = MapsVideos(context_of(tmp_path, video_preprocessor_config={**size, **settings}), timed=False)
    assert len(mapper.map(film(1, frames, 48, 48)).ids) == rows


@pytest.mark.parametrize(
    ("modality", "item", "said"),
    [
        ("image", picture(1, 2, 500), "aspect ratio must be smaller than 200"),
        ("video", film(1, 2, 8, 8)[..., :2], "array of uint8 of shape"),
        ("video", [], "array of uint8 of shape"),
        ("video", [picture(1, 8, 8), picture(1, 8, 16)], "list of pictures of one size"),
    ],
)
def test_media_that_cannot_be_cut_up_are_refused(kit: Kit, modality: str, item: Any, said: str) -> None:
    value = {"prompt": f"<|{modality}_pad|>", "multi_modal_data": {modality: [item]}}
    with pytest.raises(BadRequest, match=said):
        to_prompt(value, Tokenizer.load(kit.folder), media_inputs=kit.inputs)
