"""Rotary positions of sequences whose media have positions on several axes (e.g. M-RoPE).

text      one more than the token before it, on every axis
a medium  `Media.positions`, counted from the position where it begins
text      one more than the largest position of the medium
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.types import Chunk, Media

Int64Array = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RopePositions:
    """Rotary positions of one sequence.

    prompt: int64 [axes, prompt tokens]. shift: what is added to the index of a later token.
    """

    prompt: Int64Array
    shift: int

    @classmethod
    def from_media(cls, media: Sequence[Media], prompt_len: int, axes: int) -> RopePositions | None:
        """Positions of a prompt; None if they are the indices of its tokens."""
        if all(item.positions is None for item in media):
            return None
        prompt = np.empty((axes, prompt_len), np.int64)
        index = position = 0  # of the next token
        for item in media:
            if item.positions is None:
                continue
            gap = item.start - index
            prompt[:, index : item.start] = np.arange(position, position + gap)
            position += gap
            index = item.start + item.length
            prompt[:, item.start : index] = item.positions + position
            position += int(item.positions.max()) + 1
        prompt[:, index:] = np.arange(position, position + prompt_len - index)
        return cls(prompt, position - index)


def step_rope_positions(
    ropes: Sequence[RopePositions | None],
    chunks: Sequence[Chunk],
    positions: Int64Array,
    starts: Int64Array,
    axes: int,
) -> Int64Array:
    """Rotary positions of a step's tokens: int64 [axes, T].

    ropes: of each chunk's sequence, None where they are the indices. positions: [T], indices within the sequences.
    starts: [R + 1], the first token of each chunk.
    """
    shifts = np.fromiter((0 if rope is None else rope.shift for rope in ropes), np.int64, len(ropes))
    found = np.repeat((positions + np.repeat(shifts, np.diff(starts)))[None], axes, 0)
    for rope, chunk, begin in zip(ropes, chunks, starts, strict=False):
        if rope is not None and chunk.start < rope.prompt.shape[1]:
            in_prompt = rope.prompt[:, chunk.start : chunk.start + len(chunk.token_ids)]
            found[:, begin : begin + in_prompt.shape[1]] = in_prompt
    return found
