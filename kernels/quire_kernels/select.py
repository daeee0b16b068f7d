"""Chooses an implementation for every op, once per model, and says why the others were not chosen.

Implementations are read by attribute (name, op, supports, load, priority), so that any record with these
fields will do; nothing of ours is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from quire_kernels import attention, low_rank, ops, sampling

BUILT_IN = "built-in"
"""What stands for a plugin's name in reports about the implementations of this package."""

PLAIN = "plain"
"""The layout of pages that the op table describes."""

STORES = ("write_kv", "rotary_write_kv")
"""Ops that must have pages as `paged_attention` has them."""

PAGED = ("paged_attention", *STORES)


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

    @property
    def page_size(self) -> int:
        """Tokens in a page."""
        ...

    @property
    def head_dims(self) -> tuple[int, ...]:
        """Head dimensions of the model's blocks."""
        ...

    @property
    def kv_dtype(self) -> str:
        """How keys and values are kept: auto, as the data type says, or int8."""
        ...

    @property
    def needs(self) -> frozenset[str]:
        """Names of implementations that the model needs; they come before all others."""
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

    @property
    def layout(self) -> str:
        """How it has keys and values lie in a page; "plain" is [page_size, heads, head_dim]."""
        ...

    @property
    def kv_dtypes(self) -> tuple[str, ...]:
        """Values of `Query.kv_dtype` that it can do, if it reads or writes pages."""
        ...

    @property
    def on_request(self) -> bool:
        """Whether it is only for models that need it by name."""
        ...


@dataclass(frozen=True)
class Rejected:
    """An implementation that was not chosen, and why. kv_dtype: only because of how keys and values are kept."""

    name: str
    plugin: str
    reason: str
    kv_dtype: bool = False


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
    paged_attention: attention.PagedAttention
    row_attention: attention.RowAttention
    gated_act: ops.GatedAct
    act: ops.Act
    linear: ops.Linear
    linear_many: ops.LinearMany
    linear_int8: ops.LinearInt8
    low_rank: low_rank.LowRank
    embedding: ops.Embedding
    moe: ops.Moe
    logits_tail: ops.LogitsTail
    mask_logits: sampling.MaskLogits
    argmax: sampling.Argmax
    draw: sampling.Draw
    logprobs: sampling.Logprobs
    blocks: ops.Blocks
    report: tuple[Choice, ...] = ()


@dataclass(frozen=True)
class _BuiltIn:
    name: str
    op: str
    module: str
    priority: int
    layout: str = PLAIN
    kv_dtypes: tuple[str, ...] = ("auto",)
    on_request: bool = False

    def supports(self, query: Any) -> str | None:
        return None

    def load(self) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(import_module(self.module), self.op)
        return found


def built_in() -> list[tuple[str, Implementation]]:
    """The implementations of this package, as pairs of plugin name and implementation."""
    from quire_kernels import torch_ops
    from quire_kernels.cpu.implementations import implementations
    from quire_kernels.triton_ops import MODULES, TritonOp

    found: list[Implementation] = [*implementations(), *map(TritonOp, MODULES)]
    found += [_BuiltIn("torch", op, torch_ops.__name__, 1) for op in ops.TABLE if op in torch_ops.__all__]
    found += [_BuiltIn("reference", op, _REFERENCE, 0) for op in ops.TABLE]
    found += [_BuiltIn("torch-int8", op, _INT8_PAGES, 0, kv_dtypes=("int8",)) for op in PAGED]
    return [(BUILT_IN, impl) for impl in found]


_REFERENCE = "quire_kernels.reference"
_INT8_PAGES = "quire_kernels.int8_pages"


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
    chosen = _choose_paged(query, offered)
    chosen |= {op: _choose_one(op, query, offered) for op in ops.TABLE if op not in chosen}
    functions = {op: winner.function for op, winner in chosen.items()}
    return Ops(**functions, report=tuple(chosen[op].choice for op in ops.TABLE))


def reference() -> Ops:
    """Every op as the reference has it."""
    module = import_module(_REFERENCE)
    report = tuple(Choice(op, "reference", BUILT_IN) for op in ops.TABLE)
    return Ops(**{op: getattr(module, op) for op in ops.TABLE}, report=report)


@dataclass(frozen=True)
class _Winner:
    function: Callable[..., Any]
    choice: Choice
    layout: str


_Offered = list[tuple[str, Implementation]]


def _choose_paged(query: Query, offered: _Offered) -> dict[str, _Winner]:
    """Attention, and for the ops that store pages the best ones that do it as attention reads them."""
    unwritten: dict[str, str] = {}  # layouts that nothing stores, and why not
    while True:
        attention = _choose_one("paged_attention", query, offered, lambda impl: unwritten.get(impl.layout))
        layout = attention.layout
        try:
            stores = {op: _choose_one(op, query, offered, _other_than(layout)) for op in STORES}
        except LookupError as error:
            unwritten[layout] = f"its pages are {layout}, and nothing stores them so: {error}"
            continue
        return {"paged_attention": attention, **stores}


def _other_than(layout: str) -> Callable[[Implementation], str | None]:
    def misfit(impl: Implementation) -> str | None:
        same = impl.layout == layout
        return None if same else f"its pages are {impl.layout}, those of paged_attention are {layout}"

    return misfit


def _other_bytes(op: str, query: Query, impl: Implementation) -> str | None:
    if op not in PAGED or query.kv_dtype in impl.kv_dtypes:
        return None
    return f"it keeps keys and values as {' or '.join(impl.kv_dtypes)}, not {query.kv_dtype}"


def _unasked(query: Query, impl: Implementation) -> str | None:
    asked = not impl.on_request or impl.name in query.needs
    return None if asked else "it is only for models that need it"


def _precedence(winner: Implementation, query: Query) -> str:
    return "is what the model needs" if winner.name in query.needs else "has a higher priority"


def _choose_one(
    op: str, query: Query, offered: _Offered, misfit: Callable[[Implementation], str | None] = lambda impl: None
) -> _Winner:
    """The best implementation of an op that `misfit` has nothing against. Raises LookupError if there is none."""
    rejected: list[Rejected] = []
    winner: tuple[Callable[..., Any], Implementation, str] | None = None
    mine = (pair for pair in offered if pair[1].op == op)
    for plugin, impl in sorted(mine, key=lambda pair: (pair[1].name not in query.needs, -pair[1].priority)):
        if winner is not None:
            rejected.append(Rejected(impl.name, plugin, f"{winner[1].name} {_precedence(winner[1], query)}"))
            continue
        bytes_ = None
        try:
            reason = impl.supports(query) or _unasked(query, impl)
            bytes_ = None if reason else _other_bytes(op, query, impl)
            reason = reason or bytes_ or misfit(impl)
            if reason is None:
                winner = (impl.load(), impl, plugin)
        except (Exception, SystemExit) as error:  # a stranger's compiler may raise anything
            reason = f"it could not be loaded: {type(error).__name__}: {error}"
        if reason is not None:
            rejected.append(Rejected(impl.name, plugin, reason, kv_dtype=reason == bytes_))
    if winner is None:
        raise LookupError("; ".join(f"{r.name}: {r.reason}" for r in rejected))
    return _Winner(winner[0], Choice(op, winner[1].name, winner[2], tuple(rejected)), winner[1].layout)
