"""C++ implementations as candidates for `quire_kernels.select`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from platform import machine, system
from typing import TYPE_CHECKING, Any

from quire_kernels.attention import OPTIONS
from quire_kernels.cpu.build import BuildError
from quire_kernels.cpu.isa import INSTRUCTION_SETS, available

if TYPE_CHECKING:
    from quire_kernels.cpu.library import Library
    from quire_kernels.cpu.ops import CpuOps
    from quire_kernels.cpu.sampling import CpuSampling

log = logging.getLogger(__name__)

OPS = (
    "rms_norm",
    "add_rms_norm",
    "layer_norm",
    "rotary",
    "write_kv",
    "rotary_write_kv",
    "paged_attention",
    "read_kv",
    "row_attention",
    "gated_act",
    "act",
    "linear",
    "linear_batched",
    "linear_heads",
    "linear_int8",
    "linear_quantized",
    "low_rank",
    "route",
    "moe",
    "causal_conv",
    "gated_delta",
    "ssd_scan",
    "selective_scan",
    "gated_rms_norm",
    "fused_blocks",
)
SAMPLING = ("mask_logits", "argmax", "sample", "logprobs")
X86 = ("x86_64", "amd64")
PAGED = ("write_kv", "rotary_write_kv", "paged_attention", "read_kv")
GROUP = 16
"""Positions that are stored together in a page."""


@dataclass(frozen=True)
class CpuOp:
    """One C++ op; `name` contains the instruction set that it is compiled for."""

    name: str
    op: str
    priority: int = 2
    layout: str = "grouped"
    kv_dtypes: tuple[str, ...] = ("auto", "int8", "int4")
    on_request: bool = False
    attention_options: tuple[str, ...] = OPTIONS

    def supports(self, query: Any) -> str | None:
        """Returns None, or why the op cannot run for this query."""
        if query.device != "cpu":
            return "it is for CPUs"
        if not available():
            return _no_instruction_set()
        if self.op in SAMPLING:
            return None
        if query.dtype not in ("float32", "bfloat16"):
            return f"it computes in float32 and bfloat16, not {query.dtype}"
        return self._mismatch(query) if self.op in PAGED else None

    def _mismatch(self, query: Any) -> str | None:
        """Why the model's pages cannot be laid out in groups, or None."""
        if query.page_size % GROUP:
            return f"its page size must be a multiple of {GROUP} tokens, not {query.page_size}"
        if query.kv_dtype != "auto" and "value_dim" in query.attention_options:
            return f"its {query.kv_dtype} pages have values of the width of keys"
        if query.dtype != "bfloat16" and query.kv_dtype != "int4":
            return None
        multiple = {"auto": 2, "int8": 4, "int4": 32}[query.kv_dtype]
        others = [dim for dim in query.head_dims if dim % multiple]
        return f"its head dimensions must be multiples of {multiple}, not {others[0]}" if others else None

    def load(self) -> Callable[..., Any]:
        """Compile the library if necessary and return the op. Raises BuildError."""
        function: Callable[..., Any] = getattr(_sampling() if self.op in SAMPLING else shared_ops(), self.op)
        return function


def implementations() -> list[CpuOp]:
    """One implementation for each op, for this machine's best instruction set."""
    here = available()
    return [CpuOp(f"cpp-{here[0].name}" if here else "cpp", op) for op in (*OPS, *SAMPLING)]


@cache
def _no_instruction_set() -> str:
    """Why no op runs on this machine; logged once, because a user should know what it costs."""
    if machine().lower() in X86:
        reason = f"this CPU lacks instructions (at least {', '.join(sorted(INSTRUCTION_SETS[-1].needs))})"
    else:
        here = f"{machine() or 'unknown'} ({system()})"
        reason = f"the C++ ops are for Linux on x86-64 and AArch64, and this machine is {here}"
    log.warning("Plain torch takes the place of the C++ ops, which is several times slower: %s.", reason)
    return reason


@cache
def shared_ops() -> CpuOps:
    """The ops for this machine's best instruction set. Raises BuildError."""
    from quire_kernels.cpu.ops import CpuOps

    return CpuOps(compiled())


@cache
def _sampling() -> CpuSampling:
    from quire_kernels.cpu.sampling import CpuSampling

    return CpuSampling(compiled())


def compiled() -> Library:
    """The library of all ops. Raises BuildError."""
    found = _library_or_error()
    if isinstance(found, BuildError):
        raise found
    return found


@cache
def _library_or_error() -> Library | BuildError:
    """Tried once for all ops, because a failing compiler may take long."""
    from quire_kernels.cpu.library import load

    try:
        return load()
    except BuildError as error:
        log.warning(
            "The C++ ops are not available; plain torch is used instead, which is several times slower: %s", error
        )
        return error
