"""Video inputs of InternVL and SmolVLM: frames as images of one tile, each after its number or time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
from PIL import Image

from quire.records import Context, MappedMedia, MappedText
from quire_plugins.vision.image_processing import HFImageProcessor, processor_settings, token_id
from quire_plugins.vision.shuffled.idefics3_inputs import AROUND, MARK, WHOLE
from quire_plugins.vision.shuffled.internvl_inputs import InternTileProcessor

VIDEO_FILES = ("video_preprocessor_config.json", "preprocessor_config.json")
FRAMES = 8
"""Default of the frames of a video for InternVL."""

SAMPLING = {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": 512}}
"""Defaults of SmolVLM."""

UNKNOWN_FPS = 24.0
"""Frames per second of videos without a rate, as in transformers."""

SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
MAX_FRAMES = 99
"""What `in_words` can say."""


class NumberedFrameProcessor:
    """Videos as "Frame1: ", an image, "Frame2: ", an image, and so on: InternVL."""

    marker = "<video>"

    def __init__(self, context: Context, pictures: InternTileProcessor) -> None:
        """pictures: maps images of the same model."""
        self._pictures = pictures
        self._most: int = processor_settings(context.folder, "video_processor", VIDEO_FILES).get("num_frames") or FRAMES

    def map(self, item: Any) -> MappedText:
        """Maps a `quire.media.video.Video` to text with one medium for each frame, from the middles of equal parts."""
        count = min(self._most, item.num_frames, item.max_frames)
        part = item.num_frames / count
        frames = item.frames([int((number + 0.5) * part) for number in range(count)])
        mark = self._pictures.marker
        text = "\n".join(f"Frame{number}: {mark}" for number in range(1, count + 1))
        return MappedText(text, mark, [self._pictures.map_tile(Image.fromarray(frame)) for frame in frames])


class TimedFrameProcessor:
    """Videos as their length, and frames after the minute and second that they show: SmolVLM."""

    marker = "<video>"

    def __init__(self, context: Context, tokens: int) -> None:
        """tokens: embeddings per frame. Raises CheckpointError."""
        self._processor = HFImageProcessor(context)
        self._id, self._tokens = token_id(context, MARK), tokens
        found = processor_settings(context.folder, "video_processor", VIDEO_FILES)
        given = {**SAMPLING, **(found.get("video_sampling") or {})}
        self._fps = found.get("fps") or given["fps"]
        self._most: int = min(found.get("num_frames") or given["max_frames"], MAX_FRAMES)
        self._size = given["video_size"]

    def map(self, item: Any) -> MappedText:
        """Maps a `quire.media.video.Video` to text with one medium for each frame."""
        fps = item.fps or UNKNOWN_FPS
        numbers = self._numbers(item.num_frames, fps, item.max_frames)
        media = [self._frame(Image.fromarray(frame)) for frame in item.frames(numbers)]
        length = timedelta(seconds=int(item.num_frames / fps))
        text = (
            f"You are provided the following series of {in_words(len(media))} frames from a {length} [H:MM:SS] video.\n"
        )
        for number in numbers:
            minute, second = divmod(int(number / fps), 60)
            text += f"\nFrame from {minute:02d}:{second:02d}:{AROUND}{WHOLE}{MARK}{AROUND}"
        return MappedText(f"{text}\n\n", MARK, media)

    def _frame(self, image: Image.Image) -> MappedMedia:
        pixels = self._processor(image, do_image_splitting=False, size=self._size)["pixel_values"][0]
        return MappedMedia([self._id] * self._tokens, {"pixels": pixels})

    def _numbers(self, total: int, fps: float, most: int) -> list[int]:
        """Frames that are evenly spread; of long videos without the first and the last second."""
        seconds = total / fps
        count = max(1, min(round(self._fps * seconds), self._most, most))
        first, last = 0, total - 1
        if seconds - 2 > self._most * self._fps:
            first, last = int(fps), min(int(total - fps), total - 1)
        if first >= last:
            first, last = 0, total - 1
        return sorted(set(np.linspace(first, last, count, dtype=int).tolist()))


def in_words(number: int) -> str:
    """A number from 0 to 99 in English words."""
    if number < len(SMALL):
        return SMALL[number]
    tens, ones = divmod(number, 10)
    return TENS[tens] + (f"-{SMALL[ones]}" if ones else "")
