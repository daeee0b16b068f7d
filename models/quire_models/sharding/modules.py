"""How the parameters of each kind of module are cut, and which of its modules give a part of a sum over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from quire_models.modules.attention.cross_attention import CrossAttentionModule
from quire_models.modules.attention.latent import LatentSelfAttention
from quire_models.modules.attention.self_attention import SelfAttention
from quire_models.modules.encoder import WholeRowAttention
from quire_models.modules.mlp import FeedForward, GatedFeedForward
from quire_models.modules.moe import MoEModule, SigmoidGatedModule
from quire_models.modules.norms import RMSNormModule
from quire_models.modules.recurrent.delta import GatedDeltaNetModule, KimiDeltaModule
from quire_models.modules.recurrent.mamba import Mamba1Module, Mamba2Module
from quire_models.sharding.cuts import Cut, columns_of, of_heads
from quire_models.sharding.parts import attention_share, mamba2_shares
from quire_models.sharding.rank import HeadShare, Rank

Pieces = dict[str, Tensor | range]
"""What is kept, by path of a parameter or of a module."""


@dataclass(frozen=True)
class ModuleCuts:
    """rows, columns: by path of a parameter or of a module of parameters, what the rank has of the outputs (the first
    dimension) and of the inputs (the last). partial: modules whose outputs are added up over the ranks. norms: those
    over columns that are divided, with the number of all columns.
    """

    rows: Mapping[str, Tensor | range] = field(default_factory=dict)
    columns: Mapping[str, Tensor | range] = field(default_factory=dict)
    partial: tuple[str, ...] = ()
    norms: Mapping[str, int] = field(default_factory=dict)


def module_cuts(module: nn.Module, part: Any, rank: Rank) -> ModuleCuts | None:
    """The cuts of a module of the whole model; None if it is not divided. part: what the rank has of its part."""
    rule = RULES.get(type(module))
    whole: Any = getattr(module, "part", None)
    return None if rule is None or whole == part else rule(module, whole, rank)


def _self_attention(module: Any, part: Any, rank: Rank) -> ModuleCuts:
    share = attention_share(part, rank)
    queries = [(part.heads * part.head_dim, of_heads(share.queries, part.head_dim))]
    if part.gate:
        queries.append((part.heads * part.value_width, of_heads(share.queries, part.value_width)))
    keys = [(part.kv_heads * part.head_dim, of_heads(share.keys, part.head_dim))]
    values = [(part.kv_heads * part.value_width, of_heads(share.keys, part.value_width))]
    rows: dict[str, Any] = {}
    if part.kv_from is None:
        rows["qkv"] = columns_of(*queries, *keys, *([] if part.v_from_k else values))
    else:
        rows["q"] = columns_of(*queries)
    for name, heads in (("q_norm", share.queries), ("k_norm", share.keys)):
        weight = getattr(getattr(module, name), "weight", None)
        if weight is not None and weight.dim() == 2:  # one for each head
            rows[f"{name}.weight"] = heads
        elif part.qk_norm_wide:
            rows[f"{name}.weight"] = of_heads(heads, part.head_dim)
    columns: dict[str, Any] = {"o": of_heads(share.queries, part.value_width)}
    if part.sinks:
        rows["sinks"] = share.queries
    if part.position_bias is not None:
        columns["position_bias"] = share.queries
    return ModuleCuts(rows, columns, ("o",), _wide_norms(module, part) if part.qk_norm_wide else {})


def _wide_norms(module: Any, part: Any) -> dict[str, int]:
    """Norms over all heads of a token, with the numbers of columns."""
    sizes = {"q_norm": part.heads * part.head_dim, "k_norm": part.kv_heads * part.head_dim}
    return {name: size for name, size in sizes.items() if isinstance(getattr(module, name), RMSNormModule)}


def _row_attention(module: Any, part: Any, rank: Rank) -> ModuleCuts:
    share = HeadShare.from_rank(part.heads, part.kv_heads, rank)
    queries, keys = of_heads(share.queries, part.head_dim), of_heads(share.keys, part.head_dim)
    size = part.kv_heads * part.head_dim
    columns: dict[str, Any] = {"o": queries}
    if part.position_bias is not None:
        columns["position_bias"] = share.queries
    rows: Pieces = {"qkv": columns_of((part.heads * part.head_dim, queries), (size, keys), (size, keys))}
    norms = _wide_norms(module, part)
    rows |= {f"{name}.weight": {"q_norm": queries, "k_norm": keys}[name] for name in norms}
    return ModuleCuts(rows, columns, ("o",), norms)


def _cross_attention(module: Any, part: Any, rank: Rank) -> ModuleCuts:
    share = HeadShare.from_rank(part.heads, part.kv_heads, rank)
    queries, keys = of_heads(share.queries, part.head_dim), of_heads(share.keys, part.head_dim)
    size = part.kv_heads * part.head_dim
    return ModuleCuts({"q": queries, "kv": columns_of((size, keys), (size, keys))}, {"o": queries}, ("o",))


def _latent(module: Any, part: Any, rank: Rank) -> ModuleCuts:
    heads = rank.share(part.heads, "attention heads")
    plain, turned, values = (of_heads(heads, size) for size in (part.plain_dim, part.rope_dim, part.value_dim))
    queries = columns_of((part.heads * part.plain_dim, plain), (part.heads * part.rope_dim, turned))
    expanded = columns_of((part.heads * part.plain_dim, plain), (part.heads * part.value_dim, values))
    return ModuleCuts({"q_b" if part.q_rank else "q": queries, "kv_b": expanded}, {"o": values}, ("o",))


def _gated_mlp(module: Any, part: Any, rank: Rank) -> ModuleCuts:
    size = part.intermediate_size
    kept = rank.columns(size, "columns in an MLP")
    return ModuleCuts({"gate_up": columns_of((size, kept), (size, kept))}, {"down": kept}, ("down",))


def _mlp(module: Any, part: Any, rank: Rank) -> ModuleCuts:
    kept = rank.columns(part.intermediate_size, "columns in an MLP")
    return ModuleCuts({"up": kept}, {"down": kept}, ("down",))


def _moe(module: Any, part: Any, rank: Rank) -> ModuleCuts:
    """Experts have a dimension of their own before those of their matrices: see `model._cuts_of`."""
    if rank.by_expert:
        held = rank.share(part.experts, "experts")
        return ModuleCuts({name: held for name, _ in module.experts.named_parameters(prefix="experts")}, {}, ("",))
    size = part.expert.intermediate_size
    kept = rank.columns(size, "columns in an expert")
    first = columns_of((size, kept), (size, kept)) if part.expert.gated else kept
    middle = {"experts.gate_up": first, "experts.gate_up_bias": first}
    return ModuleCuts(middle, {"experts.down": kept}, ("",))


def _delta_net(module: Any, part: Any, rank: Rank) -> ModuleCuts:
    keys = rank.share(part.key_heads, "heads of linear attention")
    times = part.heads // part.key_heads
    heads = range(keys.start * times, keys.stop * times)
    key, value = part.key_heads * part.key_dim, part.heads * part.value_dim
    own_keys, own_values = of_heads(keys, part.key_dim), of_heads(heads, part.value_dim)
    pieces: dict[str, tuple[int, range | Tensor]] = {
        "q": (key, own_keys),
        "k": (key, own_keys),
        "v": (value, own_values),
        "z": (value, own_values),
        "b": (part.heads, heads),
        "a": (part.heads, heads),
    }
    inputs = columns_of(*(pieces[letter] for name in part.matrices for letter in name))
    channels = columns_of(*(pieces[letter] for letter in "qkv"))
    rows: Pieces = {"in_proj": inputs, "conv": channels, "A_log": heads, "dt_bias": heads}
    return ModuleCuts(rows, {"o": own_values}, ("o",))


def _kimi_delta(module: Any, part: Any, rank: Rank) -> ModuleCuts:
    heads = rank.share(part.heads, "heads")
    inner, own = part.heads * part.head_dim, of_heads(heads, part.head_dim)
    small = (part.head_dim, range(part.head_dim))
    channels = columns_of(*[(inner, own)] * 3)
    rows: Pieces = {
        "in_proj": columns_of(*[(inner, own)] * 3, (part.heads, heads), small, small),
        "conv": channels,
        "f_b": own,
        "g_b": own,
        "A_log": heads,
        "dt_bias": own,
    }
    return ModuleCuts(rows, {"o": own}, ("o",))


def _mamba2(module: Any, part: Any, rank: Rank) -> ModuleCuts:
    share = mamba2_shares(part, rank)
    assert share is not None, "the part is divided"
    own, groups = of_heads(share.queries, part.head_dim), of_heads(share.keys, part.state_size)
    both = part.groups * part.state_size
    channels = columns_of((part.inner, own), (both, groups), (both, groups))
    inputs = columns_of((part.inner, own), (part.channels, channels), (part.heads, share.queries))
    rows: Pieces = {
        "in_proj": inputs,
        "conv": channels,
        "A_log": share.queries,
        "dt_bias": share.queries,
        "D": share.queries,
    }
    if module.norm is not None:
        rows["norm"] = own
    return ModuleCuts(rows, {"o": own}, ("o",))


def _mamba1(module: Any, part: Any, rank: Rank) -> ModuleCuts:
    own = rank.columns(part.inner, "channels of state")
    rows: Pieces = {
        "in_proj": columns_of((part.inner, own), (part.inner, own)),
        "conv": own,
        "dt_proj": own,
        "A_log": own,
    }
    return ModuleCuts({**rows, "D": own}, {"o": own, "x_proj": own}, ("o", "x_proj"))


RULES: Mapping[type, Callable[[Any, Any, Rank], ModuleCuts]] = {
    SelfAttention: _self_attention,
    WholeRowAttention: _row_attention,
    CrossAttentionModule: _cross_attention,
    LatentSelfAttention: _latent,
    GatedFeedForward: _gated_mlp,
    FeedForward: _mlp,
    MoEModule: _moe,
    GatedDeltaNetModule: _delta_net,
    KimiDeltaModule: _kimi_delta,
    Mamba2Module: _mamba2,
    Mamba1Module: _mamba1,
}


def sums_inside(module: Any) -> Iterable[str]:
    """Paths of modules within what a mixture computes for every token, whose partial outputs the mixture adds up.

    Empty if it is computed whole by every rank.
    """
    shared, path = module.shared, "shared"
    while isinstance(shared, SigmoidGatedModule):
        shared, path = shared.mlp, f"{path}.mlp"
    return (f"{path}.down",) if isinstance(shared, GatedFeedForward | FeedForward) else ()


def as_indices(kept: Tensor | range) -> Tensor:
    """What is kept as indices, int64."""
    return kept if isinstance(kept, Tensor) else torch.arange(kept.start, kept.stop)


def cut_of(parameter: str, dims: int, cuts: ModuleCuts, rank: Rank) -> Cut:
    """The cut of one parameter of a module, by its path in the module. dims: its number of dimensions."""
    indices: dict[int, Tensor] = {}
    module, _, leaf = parameter.rpartition(".")
    is_expert = module == "experts"
    for name in (parameter, module):
        if name in cuts.rows:
            indices[1 if is_expert and not rank.by_expert else 0] = as_indices(cuts.rows[name])
        if name in cuts.columns and leaf != "bias":
            indices[dims - 1] = as_indices(cuts.columns[name])
    added_once = (module in cuts.columns and leaf == "bias") or (
        parameter == "experts.down_bias" and not rank.by_expert
    )
    return Cut(indices, adds=not added_once or rank.index == 0)
