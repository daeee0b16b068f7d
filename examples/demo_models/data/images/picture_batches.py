"""Training batches for the demo LLaVA: pictures, each with several questions that don't see one another.

A row is one picture and as many questions about it as there is room for. The picture is read once; behind it, each
question with its answer attends to the picture and itself, at the positions that it would have alone:

    <|user|> picture | question answer | question answer | ...

Some rows are conversations instead, in which later questions see earlier ones; some questions don't see the picture.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from models.llava_tokenizer import (
    ASSISTANT,
    END,
    IMAGE,
    PATCHES,
    SYSTEM,
    SYSTEM_TEXTS,
    USER,
)
from transformers import LlavaProcessor

from data.images.drawing import draw
from data.images.picture_questions import NO_PICTURE, ask_all, casually
from data.images.scenes import COLOURS, DIGITS, SHAPES, Scene, training_scenes

IGNORE = -100
FORMS = (*SHAPES, *DIGITS)


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Ready for the tower, with what it should see there.

    pixels: [rows, 3, size, size]. under: form and colour in the place of each patch, 0 where it is empty,
    [rows, patches, 2].
    """

    pixels: torch.Tensor
    under: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Lessons:
    """Rows of tokens; their targets are IGNORE but for answers. ids, targets, positions: [rows, length].

    visible: whether a token (third dimension) attends to another (fourth): [rows, 1, length, length].
    """

    pictures: Pictures
    ids: torch.Tensor
    targets: torch.Tensor
    positions: torch.Tensor
    visible: torch.Tensor


def _under(scene: Scene) -> torch.Tensor:
    """Form and colour of what is in the place of each patch: [patches, 2]."""
    places = torch.zeros(9, 2, dtype=torch.long)
    for thing in scene.things:
        places[thing.place] = torch.tensor([1 + FORMS.index(thing.shape), 1 + COLOURS.index(thing.colour)])
    side = PATCHES // 3
    return places.view(3, 3, 2).repeat_interleave(side, dim=0).repeat_interleave(side, dim=1).flatten(0, 1)


def show(processor: LlavaProcessor, scenes: Sequence[Scene], rng: random.Random) -> Pictures:
    """The scenes drawn, each at some size, and made ready for the tower."""
    drawn = [draw(scene, rng, rng.choice((144, 216, 288))) for scene in scenes]
    pixels = processor.image_processor(drawn, return_tensors="pt")["pixel_values"]
    return Pictures(pixels=pixels, under=torch.stack([_under(scene) for scene in scenes]))


class _Row:
    """A row while it is filled. Group 0 is seen by all groups but those that are alone; a group sees itself."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.targets: list[int] = []
        self.positions: list[int] = []
        self.groups: list[int] = []
        self.alone: list[bool] = []

    def add(self, ids: Sequence[int], group: int, start: int, *, learned: bool = False, alone: bool = False) -> None:
        """Append tokens of a group, the first of them at position `start`."""
        self.ids += ids
        self.targets += ids if learned else [IGNORE] * len(ids)
        self.positions += range(start, start + len(ids))
        self.groups += [group] * len(ids)
        self.alone += [alone] * len(ids)


class Teacher:
    """Makes batches, each of which depends on nothing but its seed. length: of the rows with questions, in tokens."""

    def __init__(self, processor: LlavaProcessor, length: int) -> None:
        self._processor, self._length = processor, length
        tokenizer = processor.tokenizer
        self._ids = lru_cache(maxsize=65536)(lambda text: tokenizer.encode(text, add_special_tokens=False))
        self._pad = tokenizer.pad_token_id

    def pictures(self, seed: str, rows: int) -> Pictures:
        """Pictures alone, with much to see."""
        rng = random.Random(seed)
        stream = training_scenes(rng, crowded=True)
        return show(self._processor, [next(stream) for _ in range(rows)], rng)

    def lessons(self, seed: str, rows: int) -> Lessons:
        """Pictures with questions."""
        rng = random.Random(seed)
        stream = training_scenes(rng)
        scenes = [next(stream) for _ in range(rows)]
        filled = [self._row(scene, rng) for scene in scenes]
        groups = self._tensor([row.groups for row in filled], -1)
        alone = self._tensor([row.alone for row in filled], True)
        same = groups[:, :, None] == groups[:, None, :]
        shared = (groups == 0)[:, None, :] & ~alone[:, :, None]
        causal = torch.ones(self._length, self._length, dtype=torch.bool).tril()
        return Lessons(
            pictures=show(self._processor, scenes, rng),
            ids=self._tensor([row.ids for row in filled], self._pad),
            targets=self._tensor([row.targets for row in filled], IGNORE),
            positions=self._tensor([row.positions for row in filled], 0),
            visible=((same | shared) & causal)[:, None],
        )

    def _tensor(self, rows: Sequence[Sequence[int]], filler: int) -> torch.Tensor:
        """The rows cut or filled up to one length: [rows, length]."""
        return torch.tensor([[*row, *[filler] * self._length][: self._length] for row in rows])

    def _row(self, scene: Scene, rng: random.Random) -> _Row:
        """The picture and questions, which may be too many."""
        row = _Row()
        opening = self._ids(f"{SYSTEM}{rng.choice(SYSTEM_TEXTS)}{USER}" if rng.random() < 0.15 else USER)
        row.add(opening + self._ids(IMAGE) * PATCHES**2, 0, 0)
        start, is_talk = len(row.ids), rng.random() < 0.2
        for number, asked in enumerate(ask_all(scene, rng), 1):
            text = casually(asked.text, rng) if rng.random() < 0.2 else asked.text
            question, answer = self._ids(text + ASSISTANT), self._ids(asked.answer + END)
            if is_talk:
                row.add(question if number == 1 else self._ids(USER) + question, 0, len(row.ids))
                row.add(answer, 0, len(row.ids), learned=True)
            elif rng.random() < 0.03:
                row.add(opening + question, number, 0, alone=True)
                row.add(self._ids(NO_PICTURE + END), number, len(opening + question), learned=True, alone=True)
            else:
                row.add(question, number, start)
                row.add(answer, number, start + len(question), learned=True)
        return row
