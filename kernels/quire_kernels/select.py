"""Chooses an implementation for every op, once per model, and records why the others were rejected.

Implementations are read by attribute (name, op, supports, load, priority), so any record with these
fields works and this module imports nothing from `quire`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from quire_kernels import attention, low_rank, moe, ops, sampling
from quire_kernels.candidates.built_in import BUILT_IN, PAGED, REFERENCE, STORES, built_in
from quire_kernels.candidates.protocols import Implementation, Query
from quire_kernels.state import ops as state

__all__ = ["BUILT_IN", "Backend", "Choice", "Ops", "Rejected", "attention_backends", "choose", "reference", "refused"]


@dataclass(frozen=True)
class Rejected:
    """An implementation that was not chosen, and why. kv_dtype: the only reason is the data type of the KV cache."""

    name: str
    plugin: str
    reason: str
    kv_dtype: bool = False


@dataclass(frozen=True)
class Choice:
    """The implementation that runs one op, and those that were rejected."""

    op: str
    name: str
    plugin: str
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Ops:
    """One callable per op of `ops.TABLE`, and how each was chosen."""

    rms_norm: ops.RMSNormOp
    add_rms_norm: ops.AddRmsNorm
    layer_norm: ops.LayerNormOp
    rotary: ops.Rotary
    write_kv: ops.WriteKv
    rotary_write_kv: ops.RotaryWriteKv
    paged_attention: attention.PagedAttention
    read_kv: attention.ReadKv
    row_attention: attention.RowAttentionOp
    gated_act: ops.GatedAct
    act: ops.Act
    linear: ops.LinearOp
    linear_batched: ops.LinearBatched
    linear_heads: attention.LinearHeads
    linear_int8: ops.LinearInt8
    linear_quantized: ops.LinearQuantized
    low_rank: low_rank.LowRank
    embedding: ops.EmbeddingOp
    route: moe.RouteOp
    moe: moe.MoeOp
    scale_logits: ops.ScaleLogits
    mask_logits: sampling.MaskLogits
    argmax: sampling.Argmax
    sample: sampling.SampleOp
    logprobs: sampling.LogprobsOp
    causal_conv: state.CausalConv
    gated_delta: state.GatedDelta
    ssd_scan: state.SsdScan
    selective_scan: state.SelectiveScan
    gated_rms_norm: state.GatedRmsNorm
    fused_blocks: ops.FusedBlocks
    report: tuple[Choice, ...] = ()


def choose(query: Query, impls: Iterable[tuple[str, Implementation]] = ()) -> Ops:
    """The best implementation of every op for a device and data type.

    impls: pairs of plugin name and implementation, in addition to the built-in ones. Among the implementations that
    support the query the highest priority wins, the earlier one on a tie. One that fails to load is skipped, and its
    error is the reason in the report. Raises ValueError for an implementation of an unknown op.
    """
    candidates = [*impls, *built_in()]
    for plugin, impl in candidates:
        if impl.op not in ops.TABLE:
            raise ValueError(
                f"Plugin {plugin!r} implements an op {impl.op!r} ({impl.name!r}); ops are {', '.join(ops.TABLE)}."
            )
    chosen = _choose_paged(query, candidates)
    chosen |= {op: _choose_one(op, query, candidates) for op in ops.TABLE if op not in chosen}
    functions = {op: winner.function for op, winner in chosen.items()}
    return Ops(**functions, report=tuple(chosen[op].choice for op in ops.TABLE))


@dataclass(frozen=True)
class Backend:
    """An implementation of `paged_attention`; reason: why it cannot run, None if it can."""

    name: str
    plugin: str
    reason: str | None


def attention_backends(query: Query, impls: Iterable[tuple[str, Implementation]] = ()) -> list[Backend]:
    """What `Query.attention_backend` may name, by descending priority; loads none of them. impls: as of `choose`."""
    found = [pair for pair in (*impls, *built_in()) if pair[1].op == "paged_attention"]

    def reason(impl: Implementation) -> str | None:
        return impl.supports(query) or _lacks_option(impl.op, query, impl) or _other_kv_dtype(impl.op, query, impl)

    found.sort(key=lambda pair: -pair[1].priority)
    return [Backend(impl.name, plugin, reason(impl)) for plugin, impl in found]


def refused(ops: Ops, query: Query) -> str | None:
    """Why attention is not what `query.attention_backend` asks for; None if it is."""
    choice = next(each for each in ops.report if each.op == "paged_attention")
    if query.attention_backend in ("auto", choice.name):
        return None
    reasons = {each.name: each.reason for each in choice.rejected}
    why = reasons.get(query.attention_backend, "no loaded plugin provides it")
    return f"it cannot be used: {why}. Here auto would be {choice.name}; `platform doctor` lists all back ends."


def reference() -> Ops:
    """The reference implementation of every op."""
    module = import_module(REFERENCE)
    report = tuple(Choice(op, "reference", BUILT_IN) for op in ops.TABLE)
    return Ops(**{op: getattr(module, op) for op in ops.TABLE}, report=report)


@dataclass(frozen=True)
class _Chosen:
    function: Callable[..., Any]
    choice: Choice
    layout: str


_Candidates = list[tuple[str, Implementation]]


def _choose_paged(query: Query, candidates: _Candidates) -> dict[str, _Chosen]:
    """Choose attention, and for each op that stores pages the best implementation with the same page layout."""
    unstorable: dict[str, str] = {}  # layout -> why no op can store it
    while True:
        attention = _choose_one("paged_attention", query, candidates, lambda impl: unstorable.get(impl.layout))
        layout = attention.layout
        try:
            stores = {op: _choose_one(op, query, candidates, _other_layout(layout)) for op in STORES}
        except LookupError as error:
            unstorable[layout] = f"its pages are {layout}, and no implementation stores that layout: {error}"
            continue
        return {"paged_attention": attention, **stores, "read_kv": _choose_read(query, candidates, layout)}


def _choose_read(query: Query, candidates: _Candidates, layout: str) -> _Chosen:
    """Choose `read_kv`, which few models need: without one for the layout, a function that says so."""
    try:
        return _choose_one("read_kv", query, candidates, _other_layout(layout))
    except LookupError as error:
        reason = f"pages with the layout {layout!r} cannot be read by read_kv: {error}"

    def unavailable(*_: Any) -> Any:
        raise RuntimeError(reason)

    return _Chosen(unavailable, Choice("read_kv", "none", BUILT_IN), layout)


def _other_layout(layout: str) -> Callable[[Implementation], str | None]:
    def mismatch(impl: Implementation) -> str | None:
        same = impl.layout == layout
        return None if same else f"its pages are {impl.layout}, but paged_attention reads {layout}"

    return mismatch


def _other_kv_dtype(op: str, query: Query, impl: Implementation) -> str | None:
    if op not in PAGED or query.kv_dtype in impl.kv_dtypes:
        return None
    return f"it stores keys and values as {' or '.join(impl.kv_dtypes)}, not {query.kv_dtype}"


def _lacks_option(op: str, query: Query, impl: Implementation) -> str | None:
    if op not in PAGED:
        return None
    needed = query.attention_options if op == "paged_attention" else query.attention_options & {"value_dim"}
    lacking = sorted(needed.difference(getattr(impl, "attention_options", ())))
    return f"it has no {' and no '.join(lacking)}, which the model's attention needs" if lacking else None


def _not_requested(query: Query, impl: Implementation) -> str | None:
    if not impl.on_request or _is_requested(query, impl):
        return None
    asked = " or if it is asked for" if impl.op == "paged_attention" else ""
    return f"it is only for models that require it{asked}"


def _is_requested(query: Query, impl: Implementation) -> bool:
    """Whether the model requires this implementation, or the user asks for it."""
    asked = impl.op == "paged_attention" and impl.name == query.attention_backend
    return asked or impl.name in query.needs


def _precedence(winner: Implementation, query: Query) -> str:
    if winner.name in query.needs:
        return "is what the model requires"
    return "is what is asked for" if _is_requested(query, winner) else "has a higher priority"


def _choose_one(
    op: str, query: Query, candidates: _Candidates, mismatch: Callable[[Implementation], str | None] = lambda impl: None
) -> _Chosen:
    """The best implementation of an op for which `mismatch` returns None. Raises LookupError if there is none."""
    rejected: list[Rejected] = []
    winner: tuple[Callable[..., Any], Implementation, str] | None = None
    of_op = (pair for pair in candidates if pair[1].op == op)
    for plugin, impl in sorted(of_op, key=lambda pair: (not _is_requested(query, pair[1]), -pair[1].priority)):
        if winner is not None:
            rejected.append(Rejected(impl.name, plugin, f"{winner[1].name} {_precedence(winner[1], query)}"))
            continue
        kv_mismatch = None
        try:
            reason = impl.supports(query) or _not_requested(query, impl) or _lacks_option(op, query, impl)
            kv_mismatch = None if reason else _other_kv_dtype(op, query, impl)
            reason = reason or kv_mismatch or mismatch(impl)
            if reason is None:
                winner = (impl.load(), impl, plugin)
        except (Exception, SystemExit) as error:  # a plugin's compiler may raise anything
            reason = f"it could not be loaded: {type(error).__name__}: {error}"
        if reason is not None:
            rejected.append(Rejected(impl.name, plugin, reason, kv_dtype=reason == kv_mismatch))
    if winner is None:
        raise LookupError("; ".join(f"{r.name}: {r.reason}" for r in rejected))
    return _Chosen(winner[0], Choice(op, winner[1].name, winner[2], tuple(rejected)), winner[1].layout)
