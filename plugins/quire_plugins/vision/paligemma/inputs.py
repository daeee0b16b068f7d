"""Prompts of PaliGemma: images, the token that begins a text, the text, and the end of a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from quire.records import Context, MappedMedia
from quire_plugins.vision.image_processing import HFImageProcessor, black_square, check_side, check_token, token_id

IMAGE, BEGIN, END = "<image>", "<bos>", "\n"


class PrefixProcessor:
    """Scales images to a square; a prompt with its images is one medium, as all of its tokens see each other."""

    def __init__(self, context: Context, config: Any, tokens: int) -> None:
        """tokens: embeddings of an image. Raises CheckpointError."""
        self._processor = HFImageProcessor(context)
        self._id, self._tokens, self._begin = config.image_token_id, tokens, token_id(context, BEGIN)
        check_token(context, IMAGE, self._id, "image_token_index")
        assert context.tokenizer is not None, "`token_id` raises an error without a tokenizer"
        self._end = context.tokenizer.encode(END, add_special_tokens=False)
        side = config.vision_config.image_size
        check_side(self._processor(black_square(side))["pixel_values"], side)

    def map(self, item: Any) -> MappedMedia:
        """Maps a Pillow image to one id per patch."""
        return MappedMedia([self._id] * self._tokens, {"pixels": self._processor(item)["pixel_values"]})

    def map_prompt(self, parts: Sequence[MappedMedia | Sequence[int]]) -> MappedMedia:
        """The prompt as the model was trained on it: the text after the last image begins and ends as its lines do.

        A prompt of ids that has the token which begins a text in that place is not changed.
        """
        last = max(i for i, part in enumerate(parts) if isinstance(part, MappedMedia))
        ids: list[int] = []
        rows_at: list[int] = []
        for part in parts[: last + 1]:
            if isinstance(part, MappedMedia):
                rows_at += range(len(ids), len(ids) + len(part.ids))
                ids += part.ids
            else:
                ids += part[1:] if list(part[:1]) == [self._begin] and not ids else part
        text = [token for part in parts[last + 1 :] if not isinstance(part, MappedMedia) for token in part]
        ids += text if text[:1] == [self._begin] else [self._begin, *text, *self._end]
        pixels = np.concatenate([part.tensors["pixels"] for part in parts if isinstance(part, MappedMedia)])
        return MappedMedia(ids, {"pixels": pixels, "ids": np.array(ids)}, rows_at=np.array(rows_at))
