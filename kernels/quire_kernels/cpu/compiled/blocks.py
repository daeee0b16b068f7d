"""Compiles runs of blocks to programs, each of which runs in one native call.

Blocks that cannot be traced run in Python. Steps with adapters have programs of their own, so that steps without
adapters are not slower; for a row without adapters both give bit-identical results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import addressof, c_double, c_int64, c_void_p
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quire_kernels.cpu.compiled.proxies import Proxy, ProxyForward, RuntimesProxy, SegmentsProxy
from quire_kernels.cpu.compiled.tracer import Tracer
from quire_kernels.cpu.library import DTYPES, Library
from quire_kernels.cpu.low_rank import split_work
from quire_kernels.cpu.structs import PRODUCTS, Instruction, Op, StepRows, StepStruct, pointers
from quire_kernels.low_rank import Segments
from quire_kernels.ops import AttentionMetadata
from quire_kernels.quantized_pages import BITS

Block = Callable[[Any, Any], Any]


class Program:
    """Blocks as one list of instructions, with the memory for intermediate results."""

    def __init__(self, library: Library, tracer: Tracer, result: Proxy) -> None:
        self._library, self._tracer, self._result = library, tracer, result
        self._code = (Instruction * len(tracer.instructions))(*tracer.instructions)
        self._seconds = (c_double * len(tracer.instructions))()
        self._offsets, self._columns = _buffer_offsets(tracer, result.buffer)
        self._arena = torch.empty(0)
        self._capacity = 0  # number of tokens that the buffers are laid out for
        self._last: Tensor | None = None
        self._reads_encoder = any(instruction.of_encoder for instruction in tracer.instructions)
        self._ends_with_selected = tracer.first_selected is not None and result.buffer >= tracer.first_selected
        self._num_timed = 0
        # refilled by every call; the step struct points to them
        self._buffers = (c_void_p * len(tracer.widths))()
        self._cos, self._sin = ((c_void_p * len(tracer.angles))() for _ in range(2))
        self._pairs = (c_int64 * len(tracer.angles))()
        self._angle_rows = (c_void_p * len(tracer.angles))()
        self._segments = (c_void_p * tracer.runtimes)()
        self._pools: tuple[Any, Any, Any] = (None, None, None)
        self._states: tuple[Any, Any] = (None, None)
        self._step = StepStruct(
            buffers=addressof(self._buffers),
            cos=addressof(self._cos),
            sin=addressof(self._sin),
            pairs=addressof(self._pairs),
            angle_rows=addressof(self._angle_rows),
            segments=addressof(self._segments),
        )

    def __call__(self, x: Tensor, fwd: Any, timed: bool = False) -> Tensor:
        """x [tokens, width], overwritten -> [tokens, width], or [logit rows, width] if the program ends with those.

        The next call may overwrite the result.
        """
        step = self._step
        step.is_bf16, step.threads, step.tokens = DTYPES[x.dtype], torch.get_num_threads(), len(x)
        step.slot_mapping, step.rows = fwd.slot_mapping.data_ptr(), step_rows(fwd.rows)
        if self._reads_encoder:
            step.cross_rows = step_rows(fwd.cross_attention)
        step.selected, step.num_selected = fwd.logit_rows.data_ptr(), len(fwd.logit_rows)
        step.seconds = addressof(self._seconds) if timed else None
        self._point_to_pools(fwd.kv)
        if self._tracer.states:
            self._point_to_states(fwd)
        self._point_to_buffers(x, max(len(x), len(fwd.logit_rows)))
        tables = self._point_to_angles(fwd)
        self._point_to_segments(fwd.adapters)
        self._library.run(step, self._code)
        self._num_timed += timed
        del tables  # the tables must stay alive until the run has ended
        if self._result.buffer == 0:
            return x
        return self._result_rows(step.num_selected if self._ends_with_selected else step.tokens)

    def _result_rows(self, count: int) -> Tensor:
        """The first `count` rows of the result; cached, because most steps have as many rows as the one before."""
        if self._last is None or len(self._last) != count:
            width, begin = self._result.columns, self._offsets[self._result.buffer] * self._capacity
            self._last = self._arena[begin : begin + width * count].view(count, width)
        return self._last

    def _point_to_pools(self, kv: Any) -> None:
        if self._pools[0] is not kv:
            self._pools = (kv, pointers(kv.k), pointers(kv.v))
            self._step.k_pools, self._step.v_pools = addressof(self._pools[1]), addressof(self._pools[2])
            self._step.page_size = kv.page_size
            self._step.kv_bits = BITS.get(kv.k[0].dtype, 0) if kv.k else 0

    def _point_to_states(self, fwd: Any) -> None:
        self._step.state_slots = fwd.state_slots.data_ptr()
        if self._states[0] is not fwd.state:
            tensors = fwd.state.tensors
            self._states = (fwd.state, pointers([tensors[layer][index] for layer, index in self._tracer.states]))
            self._step.states = addressof(self._states[1])

    def _point_to_buffers(self, x: Tensor, tokens: int) -> None:
        """Buffer 0 is x; the others, of `tokens` rows each, share one arena that grows with the largest step."""
        if self._arena.numel() < tokens * self._columns or self._arena.dtype != x.dtype:
            self._arena = torch.empty(tokens * self._columns, dtype=x.dtype)
            self._capacity = 0
        if self._capacity != tokens:
            self._last = None
            base, size = self._arena.data_ptr(), tokens * x.element_size()
            self._buffers[:] = [base + offset * size for offset in self._offsets]
            self._capacity = tokens
        self._buffers[0] = x.data_ptr()

    def _point_to_segments(self, adapters: Any) -> None:
        """Set the segments of each runtime; `adapters` keeps their memory alive."""
        for runtime_index in range(len(self._segments)):
            segments = adapters.get(runtime_index) if isinstance(adapters, Mapping) else adapters
            self._segments[runtime_index] = (
                addressof(split_work(segments, self._step.threads).struct) if segments else None
            )

    def _point_to_angles(self, fwd: Any) -> list[Tensor]:
        kept = []
        for i, key in enumerate(self._tracer.angles):
            table = key.table(fwd)
            self._angle_rows[i] = None if table is None else fwd.positions.data_ptr()
            cos, sin = (part.contiguous() for part in (table or key.for_step(fwd)))
            self._cos[i], self._sin[i], self._pairs[i] = cos.data_ptr(), sin.data_ptr(), cos.shape[-1]
            kept += [cos, sin]
        return kept

    def timings(self) -> list[tuple[str, int, float]]:
        """(operation, calls, seconds) of the timed calls since the last call of this method."""
        found: dict[str, tuple[int, float]] = {}
        for i, instruction in enumerate(self._code):
            name = Op(instruction.op).name.lower()
            if instruction.op in PRODUCTS:
                name += f" {instruction.packed.inputs} x {instruction.packed.outputs}"
            count, seconds = found.get(name, (0, 0.0))
            found[name] = (count + self._num_timed, seconds + self._seconds[i])
            self._seconds[i] = 0.0
        self._num_timed = 0
        return [(name, count, seconds) for name, (count, seconds) in found.items()]


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
    def timing(self) -> Iterator[Callable[[], list[tuple[str, int, float]]]]:
        """Time every operation inside this context; the yielded function returns (operation, calls, seconds) rows."""
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
        kept = tuple(tracer.instructions)
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
        stages += [*_program(library, tracer, x, bool(run)), block]
        run = []
        tracer, x = _blank(width)
    return (*stages, *_program(library, tracer, x, bool(run)))


def _blank(width: int) -> tuple[Tracer, Proxy]:
    tracer = Tracer(width)
    return tracer, tracer.source()


def _program(library: Library, tracer: Tracer, result: Proxy, any_blocks: bool) -> list[Program | Block]:
    return [Program(library, tracer, result)] if any_blocks else []


def _buffer_offsets(tracer: Tracer, result: int) -> tuple[list[int], int]:
    """Offset of each buffer in columns, and the number of columns: buffers reuse the memory of dead ones."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for i, instruction in enumerate(tracer.instructions):
        for view in (*instruction.inputs, instruction.out):
            first.setdefault(view.buffer, i)
            last[view.buffer] = i
    last.pop(result, None)  # the result is read after the program
    offsets, sizes, free, total = [0] * len(tracer.widths), list(tracer.widths), [], 0
    for i in range(len(tracer.instructions)):
        free += [(sizes[b], offsets[b]) for b, end in last.items() if end == i - 1 and b]
        for buffer in (b for b, begin in first.items() if begin == i and b):
            fitting = sorted(hole for hole in free if hole[0] >= tracer.widths[buffer])
            if fitting:
                free.remove(fitting[0])
                sizes[buffer], offsets[buffer] = fitting[0]
            else:
                offsets[buffer], total = total, total + tracer.widths[buffer]
    return offsets, total


def step_rows(rows: AttentionMetadata) -> StepRows:
    """Pointers to the attention metadata of a step."""
    pages = rows.pages
    return StepRows(
        rows.query_starts.data_ptr(),
        rows.contexts.data_ptr(),
        pages.data_ptr(),
        len(rows.lens_host),
        pages.stride(0) if len(pages) else 0,
        None if rows.visible_ends is None else rows.visible_ends.data_ptr(),
    )
