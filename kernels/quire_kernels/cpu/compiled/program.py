"""A program: blocks as one list of instructions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import addressof, c_double, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from quire_kernels.cpu.compiled.amounts import Amounts, OpTiming
from quire_kernels.cpu.compiled.proxies import Proxy
from quire_kernels.cpu.compiled.selection import select_early
from quire_kernels.cpu.compiled.tracer import Tracer
from quire_kernels.cpu.library import DTYPES, Library
from quire_kernels.cpu.low_rank import split_work
from quire_kernels.cpu.structs import PRODUCTS, GenerationStruct, Instruction, Op, StepRows, StepStruct, pointers
from quire_kernels.ops import AttentionMetadata
from quire_kernels.quantized_pages import BITS


class Program:
    """Blocks as one list of instructions, with the memory for intermediate results."""

    def __init__(self, library: Library, tracer: Tracer, result: Proxy) -> None:
        self._library, self._tracer, self._result = library, tracer, result
        code = select_early(tracer)
        self._code = (Instruction * len(code))(*code)
        self._seconds = (c_double * len(code))()
        self._offsets, self._columns = _buffer_offsets(code, tracer.widths, result.buffer)
        self._arena = torch.empty(0)
        self._capacity = 0  # number of tokens that the buffers are laid out for
        self._last: Tensor | None = None
        self._reads_encoder = any(instruction.of_encoder for instruction in code)
        self._waits = any(instruction.op == Op.ALL_REDUCE for instruction in code)
        self.ends_with_selected = tracer.first_selected is not None and result.buffer >= tracer.first_selected
        self._num_timed, self._amounts = 0, Amounts(self._code)
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
        tables = self.prepare(x, fwd, timed)
        self._library.run(self._step, self._code, self._waits)
        if timed:
            self._num_timed += 1
            self._amounts.add(self._step, fwd)
        del tables  # the tables must stay alive until the run has ended
        if self._result.buffer == 0:
            return x
        return self.result_rows(self._step.num_selected if self.ends_with_selected else self._step.tokens)

    def generate(self, generation: GenerationStruct) -> None:
        """Run again and again with the tokens that are predicted, after `prepare`."""
        self._library.generate(self._step, self._code, generation)

    def may_generate(self, fwd: Any, length: int) -> bool:
        """Whether a step and `length` after it depend on nothing but the positions, contexts and pages of its rows."""
        if not self.ends_with_selected or self._reads_encoder or fwd.rows.visible_ends is not None:
            return False
        tables = [key.table(fwd) for key in self._tracer.angles]
        return all(table is not None and len(table[0]) >= fwd.rows.max_context + length for table in tables)

    def prepare(self, x: Tensor, fwd: Any, timed: bool = False) -> list[Tensor]:
        """Point the step to x and to what it reads of `fwd`. The cosines and sines that must stay alive."""
        step = self._step
        step.is_bf16, step.threads, step.tokens = DTYPES[x.dtype], torch.get_num_threads(), len(x)
        step.slot_mapping, step.rows = fwd.slot_mapping.data_ptr(), step_rows(fwd.rows)
        if self._reads_encoder:
            step.cross_rows = step_rows(fwd.cross_attention)
        step.selected, step.num_selected = fwd.logit_rows.data_ptr(), len(fwd.logit_rows)
        step.seconds = addressof(self._seconds) if timed else None
        self._point_to_pools(fwd.kv)
        step.exact = getattr(fwd, "batch_invariant", False) and (self._library.isa.tiles or step.kv_bits != 0)
        if self._tracer.states:
            self._point_to_states(fwd)
        self._point_to_buffers(x, max(len(x), len(fwd.logit_rows)))
        self._point_to_segments(fwd.adapters)
        return self._point_to_angles(fwd)

    def result_rows(self, count: int) -> Tensor:
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

    def timings(self) -> list[OpTiming]:
        """Of the timed calls since the last call of this method."""
        found: dict[str, OpTiming] = {}
        for i, (instruction, amounts) in enumerate(zip(self._code, self._amounts.drain(), strict=True)):
            name = Op(instruction.op).name.lower()
            if instruction.op in PRODUCTS:
                name += f" {instruction.packed.inputs} x {instruction.packed.outputs}"
            found[name] = found.get(name, OpTiming(name)).plus(self._num_timed, self._seconds[i], *amounts)
            self._seconds[i] = 0.0
        self._num_timed = 0
        return list(found.values())


def _buffer_offsets(code: Sequence[Instruction], widths: Sequence[int], result: int) -> tuple[list[int], int]:
    """Offset of each buffer in columns, and the number of columns: buffers reuse the memory of dead ones."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for i, instruction in enumerate(code):
        for view in (*instruction.inputs, instruction.out):
            first.setdefault(view.buffer, i)
            last[view.buffer] = i
    last.pop(result, None)  # the result is read after the program
    offsets, sizes, free, total = [0] * len(widths), list(widths), [], 0
    for i in range(len(code)):
        free += [(sizes[b], offsets[b]) for b, end in last.items() if end == i - 1 and b]
        for buffer in (b for b, begin in first.items() if begin == i and b):
            fitting = sorted(hole for hole in free if hole[0] >= widths[buffer])
            if fitting:
                free.remove(fitting[0])
                sizes[buffer], offsets[buffer] = fitting[0]
            else:
                offsets[buffer], total = total, total + widths[buffer]
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
