"""The input mappers of Qwen-VL: sizes of images, frames of videos, positions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from qwen_vl_rig import (
    Kit,
    film,
    picture,
)

from quire.errors import BadRequest
from quire.records import Context
from quire.text.inputs.inputs import to_prompt
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_plugins.vision.qwen_vl_media import QwenImageProcessor, QwenVideoProcessor
from quire_testing import check_input_mapper

# --- mappers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("modality", ["image", "video"])
def test_as_many_ids_as_rows(kit: Kit, modality: str) -> None:
    items = {"image": [picture(1, 9, 30), picture(2, 200, 100)], "video": [film(1, 5, 8, 8), [picture(3, 9, 30)] * 2]}
    (record,) = (
        record
        for record in kit.found.by_hook("quire_input_mappers").values()
        if record.modality == modality and record.architecture == kit.architecture
    )
    config = type(kit.tiny.model.config)(**kit.tiny.model.config.to_dict())
    check_input_mapper(
        record, kit.found.by_hook("quire_architectures")[kit.architecture], config, items[modality], folder=kit.folder
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
        (Filmed(6, None), [0, 1, 2, 3, 4, 5], [0, 2, 4]),  # unknown rate: two frames a second are assumed
    ],
)
def test_of_a_film_two_frames_a_second_are_seen_and_placed_by_the_second(
    tmp_path: Path, filmed: Filmed, numbers: list[int], times: list[int]
) -> None:
    context = context_of(tmp_path, preprocessor_config=TINY_SIZE)
    mapper = QwenVideoProcessor(context, timed=True)
    mapped = mapper.map(filmed)
    assert filmed.asked == numbers
    assert mapped.positions[0].tolist() == times
    assert QwenVideoProcessor(context, timed=False).map(filmed).positions[0].tolist() == list(range(len(times)))


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
    assert len(QwenImageProcessor(context).map(picture(1, 8, 8)).ids) == pictures
    assert len(QwenVideoProcessor(context, timed=True).map(film(1, 2, 8, 8)).ids) == videos


@pytest.mark.parametrize(
    ("settings", "frames", "rows"),
    [
        ({}, 12, 6 * 6 * 6),
        ({"max_video_tokens": 100}, 12, 6 * 6 * 6),  # a limit without the setting that divides it among frames
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
    mapper = QwenVideoProcessor(context_of(tmp_path, video_preprocessor_config={**size, **settings}), timed=False)
    assert len(mapper.map(film(1, frames, 48, 48)).ids) == rows


@pytest.mark.parametrize(
    ("modality", "item", "said"),
    [
        ("image", picture(1, 2, 500), "aspect ratio must be smaller than 200"),
        ("video", film(1, 2, 8, 8)[..., :2], "array of uint8 of shape"),
        ("video", [], "array of uint8 of shape"),
        ("video", [picture(1, 8, 8), picture(1, 8, 16)], "list of images of one size"),
    ],
)
def test_media_that_cannot_be_cut_up_are_refused(kit: Kit, modality: str, item: Any, said: str) -> None:
    value = {"prompt": f"<|{modality}_pad|>", "multi_modal_data": {modality: [item]}}
    with pytest.raises(BadRequest, match=said):
        to_prompt(value, Tokenizer.load(kit.folder), multimodal=kit.inputs)
