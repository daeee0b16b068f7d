"""The families of `picture_families` with videos: prompts by the rules of transformers' processors.

Their processors of videos need torchvision, so that transformers' models get the pixels that Quire's mappers make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from llava_rig import picture
from media_checks import Question
from picture_families import families
from picture_model import FIRST_TOKEN, Family, PictureModel
from torch import Tensor

from quire.types import Prompt

FRAMES = np.stack([np.asarray(picture(number, 20, 12)) for number in range(5)])
OTHERS = np.stack([np.asarray(picture(number, 20, 12)) for number in range(7, 12)])


@dataclass(frozen=True)
class VideoCase:
    """marker: of a video in a text. shown: the text in its place, if the video has five frames, two per second.

    inputs: what transformers' model takes of a prompt with a video, beside the ids of the prompt and of some after it.
    """

    family: Family
    marker: str
    shown: str
    inputs: Callable[[Prompt, int], dict[str, Tensor]]


class VideoModel(PictureModel):
    """A tiny model in a folder: a `MediaModel` that is asked about videos."""

    def __init__(self, folder: Path, case: VideoCase) -> None:
        super().__init__(folder, case.family)
        self.case = case

    @property
    def questions(self) -> list[Question]:
        """No video, and a video at the start and at the end."""
        mark = self.case.marker
        return [
            Question("no video, but a text of some length"),
            Question(f"{mark}first of all", {"video": [(FRAMES, {"fps": 2.0})]}),
            Question(f"what is at the end? {mark}", {"video": [(OTHERS, {"fps": 2.0})]}),
        ]

    @property
    def later(self) -> list[Question]:
        """The second question with another end, and with another video of the same size."""
        mark = self.case.marker
        return [
            Question(f"{mark}first of none, then more", {"video": [(FRAMES, {"fps": 2.0})]}),
            Question(f"{mark}first of all", {"video": [(OTHERS, {"fps": 2.0})]}),
        ]

    def check_inputs(self, prompts: Sequence[Prompt]) -> None:
        """Compares the ids."""
        for prompt, question in zip(prompts, self.questions, strict=True):
            wanted = self.tokenizer.encode(question.text.replace(self.case.marker, self.case.shown))
            assert list(prompt.token_ids) == wanted, question.text

    def _inputs(self, prompt: Prompt, count: int, question: Question) -> dict[str, Tensor]:
        return self.case.inputs(prompt, count)


def _pixels(prompt: Prompt) -> list[Tensor]:
    return [medium.tensors["pixels"] for medium in prompt.media]


def _internvl(prompt: Prompt, count: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.cat(_pixels(prompt))} if prompt.media else {}


def _smolvlm(prompt: Prompt, count: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.cat(_pixels(prompt))[None]} if prompt.media else {}


def _qwen(prompt: Prompt, count: int) -> dict[str, Tensor]:
    ids = torch.tensor([[*prompt.token_ids, *[0] * count]])
    types = {"mm_token_type_ids": 2 * (ids == FIRST_TOKEN + 1).long()}
    if not prompt.media:
        return types
    frames = [medium.tensors["patches"] for medium in prompt.media]
    _, height, width = prompt.media[0].tensors["grid"].tolist()
    return {
        **types,
        "pixel_values_videos": torch.cat([some.expand(-1, -1, 2, -1).flatten(1) for some in frames]),
        "video_grid_thw": torch.tensor([[len(frames), height, width]]),
    }


def _timed(text: str, times: Sequence[object]) -> str:
    return "".join(text.format(time=time) for time in times)


QWEN = "<{time} seconds><|vision_start|>" + "<|video_pad|>" * 4 + "<|vision_end|>"
SMOLVLM = (
    "You are provided the following series of two frames from a 0:00:02 [H:MM:SS] video.\n"
    + _timed(
        "\nFrame from {time}:<fake_token_around_image><global-img>" + "<image>" * 4 + "<fake_token_around_image>",
        ["00:00", "00:02"],
    )
    + "\n\n"
)
INTERNVL = "\n".join(f"Frame{number}: <img>{'<IMG_CONTEXT>' * 4}</img>" for number in range(1, 6))


def video_cases() -> Mapping[str, VideoCase]:
    """By name."""
    found = families()
    return {
        "internvl": VideoCase(found["internvl"], "<video>", INTERNVL, _internvl),
        "smolvlm": VideoCase(found["smolvlm"], "<video>", SMOLVLM, _smolvlm),
        "qwen3-vl": VideoCase(found["qwen3-vl"], "<|video_pad|>", _timed(QWEN, [0.2, 1.2, 2.0]), _qwen),
        "qwen3.5": VideoCase(found["qwen3.5"], "<|video_pad|>", _timed(QWEN, [0.2, 1.2, 2.0]), _qwen),
    }
