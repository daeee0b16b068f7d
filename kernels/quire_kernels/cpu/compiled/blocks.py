"""Compiles runs of blocks to programs, each of which runs in one native call.

Blocks that cannot be traced run in Python. Steps with adapters have programs of their own, so that steps without
adapters are not slower; for a row without adapters both give bit-identical results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from quire_kernels.cpu.argmax import CpuArgmax
from quire_kernels.cpu.compiled.amounts import OpTiming
from quire_kernels.cpu.compiled.generation import generate
from quire_kernels.cpu.compiled.program import Program
from quire_kernels.cpu.compiled.proxies import Proxy, ProxyForward, RuntimesProxy, SegmentsProxy
from quire_kernels.cpu.compiled.tracer import Tracer
from quire_kernels.cpu.library import Library
from quire_kernels.cpu.linear.packed import PackedLinear
from quire_kernels.low_rank import Segments

Block = Callable[[Any, Any], Any]
Stages = tuple[Program | Block, ...]


@dataclass(eq=False)
class CompiledBlocks:
    """A run of blocks as stages: programs, and blocks that run in Python.

    stages: for steps without adapters. adapted: compiles the stages for steps with adapters of one runtime, or of
    several.
    """

    stages: Stages
    blocks: tuple[Block, ...]
    adapted: Callable[[SegmentsProxy | RuntimesProxy], Stages]
    _adapted_stages: dict[bool, Stages] = field(default_factory=dict, init=False)
    _timed: bool = field(default=False, init=False)

    def __call__(self, x: Tensor, fwd: Any) -> Tensor:
        """x [tokens, width] -> [tokens, width]. May overwrite x."""
        for stage in self._stages_for(fwd.adapters):
            x = stage(x.contiguous(), fwd, self._timed) if isinstance(stage, Program) else stage(x, fwd)
        return x

    def generate(self, fwd: Any, table: Any, scale: float, argmax: Any, tokens: Tensor, slots: Tensor) -> Tensor | None:
        """The most likely tokens after `tokens` (int64 [R]), one after the other: int64 [N, R].

        fwd: of `tokens`, one a row; its positions and contexts are counted up. table, scale: of the embeddings, a
        tensor or the linear layer that holds them. argmax: that of the LM head. slots: int64 [N, R], the slot mapping
        of each run. None if the blocks are not one program or the table is quantized.
        """
        stage, *others = self.stages
        is_plain = isinstance(table, PackedLinear) or (isinstance(table, Tensor) and len(table) > 0)
        if others or not isinstance(stage, Program) or not is_plain or not isinstance(argmax, CpuArgmax):
            return None
        return generate(stage, fwd, table, scale, argmax, tokens, slots)

    def is_batch_invariant(self, adapters: Any) -> bool:
        """Whether no bit of a token's result depends on the other tokens of a step with these adapters.

        Programs are so, with `ForwardBatch.batch_invariant`; what blocks in Python call is not known.
        """
        return all(isinstance(stage, Program) for stage in self._stages_for(adapters))

    def _stages_for(self, adapters: Any) -> Stages:
        """The stages for a step; the plain blocks for bound adapters that programs do not support."""
        if adapters is None:
            return self.stages
        several = isinstance(adapters, Mapping)
        if not all(isinstance(bound, Segments) for bound in (adapters.values() if several else (adapters,))):
            return self.blocks
        if several not in self._adapted_stages:
            self._adapted_stages[several] = self.adapted(RuntimesProxy() if several else SegmentsProxy(0))
        return self._adapted_stages[several]

    @contextmanager
    def timing(self) -> Iterator[Callable[[], list[OpTiming]]]:
        """Time every operation inside this context; the yielded function returns a row for each."""
        self._timed = True
        try:
            yield lambda: [row for program in self._programs() for row in program.timings()]
        finally:
            self._timed = False

    def _programs(self) -> list[Program]:
        return [
            stage
            for stages in (self.stages, *self._adapted_stages.values())
            for stage in stages
            if isinstance(stage, Program)
        ]


def compile_blocks(library: Library, blocks: Sequence[Block], width: int) -> CompiledBlocks:
    """Compile the longest runs of blocks that can be traced."""
    blocks = tuple(blocks)
    return CompiledBlocks(_stages(library, blocks, width), blocks, partial(_stages, library, blocks, width))


def _stages(
    library: Library, blocks: Sequence[Block], width: int, adapters: SegmentsProxy | RuntimesProxy | None = None
) -> Stages:
    stages: list[Program | Block] = []
    run: list[Block] = []
    tracer, x = _blank(width)
    for block in blocks:
        kept, num_states = tuple(tracer.instructions), len(tracer.states)
        try:
            y = block(x, ProxyForward(tracer, adapters))
            traceable = isinstance(y, Proxy) and tracer.is_whole(y, width)
        except Exception:  # a block that does not support proxies may raise anything
            traceable = False
        if traceable:
            run.append(block)
            x = y
            continue
        tracer.instructions[:] = kept
        del tracer.states[num_states:]
        stages += [*_program(library, tracer, x, bool(run)), block]
        run = []
        tracer, x = _blank(width)
    return (*stages, *_program(library, tracer, x, bool(run)))


def _blank(width: int) -> tuple[Tracer, Proxy]:
    tracer = Tracer(width)
    return tracer, tracer.source()


def _program(library: Library, tracer: Tracer, result: Proxy, any_blocks: bool) -> list[Program | Block]:
    return [Program(library, tracer, result)] if any_blocks else []
