"""Chooses an implementation for every op, once per model, and says why the others were not chosen.

Implementations are read by attribute (name, op, supports, load, priority), so that any record with these
fields will do; nothing of ours is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from quire_kernels import ops

BUILT_IN = "built-in"
"""What stands for a plugin's name in reports about the implementations of this package."""


class Query(Protocol):
    """Where ops would run; `quire.records.OpQuery` is one."""

    @property
    def device(self) -> str:
        """Device type: cpu, cuda."""
        ...

    @property
    def dtype(self) -> str:
        """Name of the data type: float32, bfloat16."""
        ...


class Implementation(Protocol):
    """An implementation of an op; `quire.records.OpImpl` is one."""

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    @property
    def op(self) -> str:
        """Name in the op table."""
        ...

    @property
    def supports(self) -> Callable[[Any], str | None]:
        """None if it can run there, else the reason why not."""
        ...

    @property
    def load(self) -> Callable[[], Callable[..., Any]]:
        """Import or compile, and return the callable."""
        ...

    @property
    def priority(self) -> int:
        """Higher wins."""
        ...


@dataclass(frozen=True)
class Rejected:
    """An implementation that was not chosen, and why."""

    name: str
    plugin: str
    reason: str


@dataclass(frozen=True)
class Choice:
    """What runs for one op."""

    op: str
    name: str
    plugin: str
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Ops:
    """One callable per op of `ops.TABLE`, and how each was chosen."""

    rms_norm: ops.RmsNorm
    add_rms_norm: ops.AddRmsNorm
    layer_norm: ops.LayerNorm
    rotary: ops.Rotary
    write_kv: ops.WriteKv
    rotary_write_kv: ops.RotaryWriteKv
    paged_attention: ops.PagedAttention
    gated_act: ops.GatedAct
    act: ops.Act
    linear: ops.Linear
    embedding: ops.Embedding
    moe: ops.Moe
    logits_tail: ops.LogitsTail
    report: tuple[Choice, ...] = ()


@dataclass(frozen=True)
class _BuiltIn:
    name: str
    op: str
    module: str
    priority: int

    def supports(self, query: Any) -> str | None:
        return None

    def load(self) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(import_module(self.module), self.op)
        return found


def built_in() -> list[tuple[str, Implementation]]:
    """The implementations of this package, as pairs of plugin name and implementation."""
    fast = import_module("quire_kernels.torch_ops")
    found = [_BuiltIn("torch", op, fast.__name__, 1) for op in ops.TABLE if op in fast.__all__]
    return [(BUILT_IN, impl) for impl in [*found, *(_BuiltIn("reference", op, _REFERENCE, 0) for op in ops.TABLE)]]


_REFERENCE = "quire_kernels.reference"


def choose(query: Query, impls: Iterable[tuple[str, Implementation]] = ()) -> Ops:
    """The best implementation of every op for a device and data type.

    `impls` are pairs of plugin name and implementation, beside the built-in ones. Among those that support
    the query the highest priority wins, the earlier one on a tie; one that fails to load is passed over and
    its error is the reason in the report. Raises ValueError for an implementation of an unknown op.
    """
    offered = [*impls, *built_in()]
    for plugin, impl in offered:
        if impl.op not in ops.TABLE:
            raise ValueError(
                f"Plugin {plugin!r} implements an op {impl.op!r} ({impl.name!r}); ops are {', '.join(ops.TABLE)}."
            )
    chosen = {op: _choose_one(op, query, [pair for pair in offered if pair[1].op == op]) for op in ops.TABLE}
    functions = {op: function for op, (function, _) in chosen.items()}
    return Ops(**functions, report=tuple(choice for _, choice in chosen.values()))


def reference() -> Ops:
    """Every op as the reference has it."""
    module = import_module(_REFERENCE)
    report = tuple(Choice(op, "reference", BUILT_IN) for op in ops.TABLE)
    return Ops(**{op: getattr(module, op) for op in ops.TABLE}, report=report)


def _choose_one(op: str, query: Query, offered: list[tuple[str, Implementation]]) -> tuple[Callable[..., Any], Choice]:
    rejected: list[Rejected] = []
    winner: tuple[Callable[..., Any], str, str] | None = None
    for plugin, impl in sorted(offered, key=lambda pair: -pair[1].priority):
        if winner is not None:
            rejected.append(Rejected(impl.name, plugin, f"{winner[1]} has a higher priority"))
            continue
        try:
            reason = impl.supports(query)
            if reason is None:
                winner = (impl.load(), impl.name, plugin)
        except Exception as error:  # a stranger's compiler may raise anything
            reason = f"it could not be loaded: {type(error).__name__}: {error}"
        if reason is not None:
            rejected.append(Rejected(impl.name, plugin, reason))
    assert winner is not None, f"the reference of {op} always loads"
    return winner[0], Choice(op, winner[1], winner[2], tuple(rejected))
