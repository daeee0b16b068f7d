"""A group of ranks of one machine that exchange numbers through shared memory, also inside compiled programs."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from ctypes import addressof, c_int64
from typing import Any

import torch
from torch import Tensor

from quire_kernels.cpu.compiled.proxies import Proxy, Untraceable
from quire_kernels.cpu.library import DTYPES, Library
from quire_kernels.cpu.structs import Instruction, Op, StepStruct, TensorView, pointers
from quire_kernels.groups.group import RankLost
from quire_kernels.groups.structs import MAX_RANKS, MAX_THREADS, Member

SLOT_BYTES = 1 << 16
"""Size of the numbers that a rank announces at once."""

SPINS = 4000
"""Pauses of a waiting thread, about 50 µs, before it yields its core, if each thread of all ranks has one."""

ATTEMPTS_PER_PLAN_BITS = 14
"""A plan may be computed in that many forward passes (2 to the power of this): one for each row if one has failed."""

_PROBLEMS = {
    1: ("another rank has left this forward pass because of an error", False),
    2: ("a rank of this model's group has ended", True),
    3: ("a rank of this model's group does not answer", True),
    4: ("the ranks of this model's group compute different tokens", True),
}


def shared_bytes(library: Library, size: int, threads: int, slot_bytes: int = SLOT_BYTES) -> int:
    """Size of the memory that a group shares."""
    member = Member(size=size, threads=threads, slot_bytes=slot_bytes)
    return int(library.functions.quire_group_bytes(ctypes.byref(member)))


class SharedMemoryGroup:
    """One rank of a group. memory: zeros at first, shared by the ranks; `shared_bytes` says how many bytes it has.

    threads: how many threads of a rank exchange numbers at once, equal on all ranks. timeout_s: how long a rank waits
    for the others.
    """

    slot_bytes = SLOT_BYTES

    def __init__(
        self, library: Library, memory: mmap.mmap, rank: int, size: int, threads: int, timeout_s: float = 60.0
    ) -> None:
        if not 0 <= rank < size <= MAX_RANKS or not 0 < threads <= MAX_THREADS:
            raise ValueError(f"rank {rank} of {size} with {threads} threads")
        self._library, self._memory = library, memory
        self._shared = (ctypes.c_char * len(memory)).from_buffer(memory)
        start = addressof(self._shared)
        if len(memory) < shared_bytes(library, size, threads, self.slot_bytes) or start % 64:
            raise ValueError(f"{len(memory)} bytes of shared memory at {start:#x} are too few, or not aligned")
        self.rank, self.size = rank, size
        self._member = Member(
            shared=start,
            rank=rank,
            size=size,
            threads=threads,
            slot_bytes=self.slot_bytes,
            timeout_ms=int(timeout_s * 1000),
            spins=SPINS if size * threads <= len(os.sched_getaffinity(0)) else 0,
        )
        self._attempt = 0

    def start_plan(self, number: int) -> None:
        """Number the attempts that follow: those of a later plan are after all of an earlier one."""
        self._attempt = number << ATTEMPTS_PER_PLAN_BITS

    def begin(self) -> None:
        """Begin a forward pass, together with the other ranks."""
        self._attempt += 1
        state = self._library.functions.quire_begin_attempt(ctypes.byref(self._member), self._attempt)
        if state:
            self.check()

    def all_reduce(self, x: Any) -> Any:
        """The sum over the ranks, in place. Records an instruction if x is a proxy."""
        if isinstance(x, Proxy):
            if x.headed or x.stride != x.columns:
                raise Untraceable("only whole rows are summed over ranks")
            x.tracer.kept.append(self)
            return x.tracer.write(Op.ALL_REDUCE, [x], x, weight=addressof(self._member))
        if x.dtype not in DTYPES:
            return self.all_reduce(x.float()).to(x.dtype)
        x = x.contiguous()
        rows = x.view(-1, x.shape[-1])
        view = TensorView(0, 1, 0, rows.shape[1], rows.shape[1])
        inputs = (TensorView * 3)(view, TensorView(), TensorView())
        program = (Instruction * 1)(
            Instruction(op=Op.ALL_REDUCE, inputs=inputs, out=view, weight=addressof(self._member))
        )
        buffers = pointers([rows])
        step = StepStruct(is_bf16=DTYPES[x.dtype], threads=torch.get_num_threads(), tokens=len(rows))
        step.buffers = addressof(buffers)
        self._library.run(step, program, waits=True)
        self.check()
        return x

    def gather(self, x: Tensor, widths: Sequence[int], to_all: bool = False) -> Tensor | None:
        """The columns of all ranks side by side, on the first rank or on all."""
        x = x.contiguous()
        found = torch.empty(len(x), sum(widths)) if to_all or self.rank == 0 else None
        self._library.functions.quire_gather_columns(
            ctypes.byref(self._member),
            x.data_ptr(),
            None if found is None else found.data_ptr(),
            len(x),
            (c_int64 * len(widths))(*widths),
            torch.get_num_threads(),
        )
        self.check()
        return found

    def check(self) -> None:
        """Raise RankLost if the current forward pass has failed on another rank."""
        if self._member.state:
            raise RankLost(*_PROBLEMS[self._member.state])

    def fail(self) -> None:
        """Let all ranks that wait for others fail, now and later. May be called from any thread."""
        self._memory[:8] = (1).to_bytes(8, "little")


def anonymous_memory(size: int) -> tuple[int, mmap.mmap]:
    """Zeros in memory without a name, which processes share that get the descriptor; it is gone with the last one."""
    descriptor = os.memfd_create("quire-ranks", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, size)
    return descriptor, mmap.mmap(descriptor, size)
