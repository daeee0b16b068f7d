"""Videos: frames after their numbers or times, and logits and tokens against transformers and peft."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engine_rig import rig_of
from family_checks import plugins
from media_checks import check_media_family
from video_model import VideoModel, video_cases

from quire.errors import BadRequest
from quire.text.inputs.inputs import to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor
from quire_plugins.vision.shuffled.video_inputs import in_words

CASES = video_cases()


@pytest.mark.parametrize("name", CASES)
def test_a_family_that_sees_videos_gives_what_transformers_gives(name: str, tmp_path: Path) -> None:
    check_media_family(VideoModel(tmp_path, CASES[name]), plugins())


def test_narrow_frames_are_refused(tmp_path: Path) -> None:
    model = VideoModel(tmp_path, CASES["qwen3-vl"])
    with rig_of(model.folder, plugins()) as rig, pytest.raises(BadRequest, match="at most 200 times"):
        to_prompt(
            {"prompt": "<|video_pad|>", "multi_modal_data": {"video": np.zeros((2, 8, 2000, 3), np.uint8)}},
            model.tokenizer,
            multimodal=MultimodalProcessor(plugins(), rig.engine.info, model.tokenizer),
        )


def test_numbers_of_frames_in_words() -> None:
    assert [in_words(number) for number in (8, 19, 20, 64, 99)] == [
        "eight",
        "nineteen",
        "twenty",
        "sixty-four",
        "ninety-nine",
    ]
