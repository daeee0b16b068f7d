"""Stages: neighboring blocks of a model that are computed one after the other (pipeline parallelism, arXiv 1811.06965).

The first stage has what makes the first block's input, the last one what follows the last block. A stage has as many
blocks as the whole model, with empty ones in place of those of other stages, so that layers keep their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from quire.errors import ConfigError
from quire_kernels import select
from quire_models.modules.builder import ModuleBuilder
from quire_models.parts.decoder import Decoder
from quire_models.parts.encoder import Encoder
from quire_models.parts.state import KvShape, parts_of


@dataclass(frozen=True)
class Stage:
    """Stage `index` of `count`."""

    index: int
    count: int

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.count - 1

    def part(self, whole: Any, own: Any) -> StagePart:
        """The stage of a model. own: the model whose blocks it has, in parts if ranks divide them."""
        held = cuts(whole, self.count)[self.index]
        blocks = tuple(block if i in held else AbsentBlock(block) for i, block in enumerate(own.blocks))
        return StagePart(replace(own, blocks=blocks), self)

    def has_tower(self, whole: Any) -> bool:
        """Whether it needs the tower, whose rows are inputs of the first block, or of all that have cross-attention."""
        return self.is_first or whole.encoder_input is not None

    def strip(self, module: Any) -> None:
        """Drop the modules of other stages from one of the whole model."""
        absent: set[str] = set()
        if not self.is_first:
            absent.update(module.first_modules)
        if not self.is_last:
            absent.update(module.last_modules)
        part = module.part
        if part.encoder_input is not None or (self.is_last and part.tied):
            absent.discard("embed")  # a tower may read it, a tied head is the same matrix
        for name in absent:
            if getattr(module, name, None) is not None:
                setattr(module, name, None)


class AbsentBlockModule(nn.Module):
    """Takes the place of a block of another stage, so that those behind it keep their numbers."""

    def store(self, rows: Any, slots: Any) -> None:
        """Do nothing with encoder inputs: the stage that has the block stores what it reads of them."""


@dataclass(frozen=True)
class AbsentBlock:
    """A block of another stage. part: what it is there."""

    part: Any
    kv_shape = KvShape(0, 0)

    def build(self, width: int, builder: ModuleBuilder) -> AbsentBlockModule:
        """A module that is never called."""
        return AbsentBlockModule()


class StagePart:
    """What a `ModelPart` is for one stage; its attributes are those of the whole model, with absent blocks.

    has_tower: whether the stage needs the tower.
    """

    def __init__(self, part: Any, stage: Stage) -> None:
        self._part, self._stage = part, stage
        self.has_tower = stage.has_tower(part)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def build(self, builder: ModuleBuilder) -> Any:
        """The module of the stage, with uninitialized weights."""
        module = self._part.build(builder)
        self._stage.strip(module)
        return module


def cuts(whole: Any, count: int) -> list[range]:
    """The blocks of each stage, so that the largest number of weights of a stage is as small as possible.

    Raises ConfigError if the model has not so many stages, or cannot be cut.
    """
    if not isinstance(whole, Decoder | Encoder):
        raise ConfigError(
            f"--pipeline-parallel-size {count}: this model is not made of Quire's parts (a fallback builds it), so it "
            "cannot be cut into stages; serve it with --pipeline-parallel-size 1, or use --data-parallel-size."
        )
    starts = [0, *_possible_starts(whole)]
    if len(starts) < count:
        blocks = len(whole.blocks)
        why = (
            f"has {blocks} blocks"
            if len(starts) == blocks
            else f"has {blocks} blocks, some of which must be on one stage because they read what earlier ones made"
        )
        raise ConfigError(f"--pipeline-parallel-size {count}: the model {why}, so it can be at most {len(starts)}.")
    return _balanced(_sizes(whole), starts, count)


def _possible_starts(whole: Any) -> Iterator[int]:
    """Blocks that a stage after the first may begin with: no later block reads keys and values of an earlier stage, and
    features of media are added in the first one.
    """
    sources: dict[int, int] = {}
    for i, block in enumerate(whole.blocks):
        read = [part.kv_from for part in parts_of(block) if getattr(part, "kv_from", None) is not None]
        sources[i] = min([i, *read])
    for start in range(max(1, getattr(whole, "deepstack", 0)), len(whole.blocks)):
        if all(sources[i] >= start for i in range(start, len(whole.blocks))):
            yield start


def _sizes(whole: Any) -> tuple[tuple[int, ...], int, int]:
    """Numbers of weights: of each block, before the first block, and after the last one."""
    module: Any = whole.build(ModuleBuilder(select.reference(), torch.float32, torch.device("meta")))
    blocks = tuple(sum(each.numel() for each in block.parameters()) for block in module.blocks)
    ends = [
        sum(each.numel() for name in names if (held := getattr(module, name, None)) for each in held.parameters())
        for names in (module.first_modules, module.last_modules)
    ]
    return blocks, ends[0], ends[1]


def _balanced(sizes: tuple[tuple[int, ...], int, int], starts: Sequence[int], count: int) -> list[range]:
    """Stages that begin at some of `starts`: first the largest is as small as possible, then the sum of squares."""
    blocks, before, after = sizes
    total = len(blocks)

    def size(first: int, end: int) -> int:
        return sum(blocks[first:end]) + (before if first == 0 else 0) + (after if end == total else 0)

    best: dict[int, tuple[int, int, tuple[int, ...]]] = {0: (0, 0, ())}  # end -> largest, squares, starts so far
    for left in range(count - 1, -1, -1):
        ends = [total] if left == 0 else [each for each in starts if each]
        found: dict[int, tuple[int, int, tuple[int, ...]]] = {}
        for end in ends:
            ways = [
                (max(largest, size(first, end)), squares + size(first, end) ** 2, (*begun, first))
                for first, (largest, squares, begun) in best.items()
                if first < end
            ]
            if ways:
                found[end] = min(ways)
        best = found
    (_, _, begun) = best[total]
    return [range(first, end) for first, end in zip(begun, (*begun[1:], total), strict=True)]
