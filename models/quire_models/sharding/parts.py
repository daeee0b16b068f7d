"""The parts that one rank has of a decoder's parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from itertools import chain
from typing import Any

from quire.errors import ConfigError
from quire_models.parts.attention.latent import LatentAttention
from quire_models.parts.cross_attention import CrossAttention, CrossAttentionBlock
from quire_models.parts.decoder import (
    Attention,
    Block,
    Decoder,
    GatedMlp,
    Mlp,
    ParallelBlock,
    PostNormBlock,
)
from quire_models.parts.encoder import Encoder, RowAttention
from quire_models.parts.mixers import MixerBlock, ParallelMixers
from quire_models.parts.moe import Moe, SigmoidGated
from quire_models.parts.norms import PerHead, RMSNorm
from quire_models.parts.recurrent.delta import GatedDeltaNet, KimiDelta
from quire_models.parts.recurrent.mamba import Mamba1, Mamba2
from quire_models.parts.state import parts_of
from quire_models.sharding.rank import HeadShare, Rank

CONTAINERS = (Block, ParallelBlock, PostNormBlock, MixerBlock, ParallelMixers, CrossAttentionBlock, SigmoidGated)
"""Parts, and classes derived from them, that use the outputs of their branches and nothing else of these."""

BRANCHES = ("attn", "mlp", "mixer", "cross", "part")
"""Fields of containers that are divided."""


def rank_of_model(decoder: Any, rank: Rank) -> Rank:
    """The rank, with whole groups of heads if a block reads the keys of one that has other numbers of heads."""
    blocks = [[part for part in parts_of(block) if type(part) is Attention] for block in decoder.blocks]
    pairs = [
        (reader, source) for reader in chain(*blocks) if reader.kv_from is not None for source in blocks[reader.kv_from]
    ]
    alike = all((one.heads, one.kv_heads) == (other.heads, other.kv_heads) for one, other in pairs)
    return rank if alike else replace(rank, whole_groups=True)


def shard_model(decoder: Any, rank: Rank) -> Any:
    """The decoder or encoder of one rank. Raises ConfigError if it cannot be divided."""
    if not isinstance(decoder, Decoder | Encoder):
        raise ConfigError(
            f"--tensor-parallel-size {rank.size}: this model is not made of Quire's parts (a fallback builds it), so "
            "it cannot be divided; serve it with --tensor-parallel-size 1, or use --data-parallel-size."
        )
    rank = rank_of_model(decoder, rank)
    changed: Any = replace(decoder, blocks=tuple(shard_part(block, rank) for block in decoder.blocks))
    if isinstance(decoder, Encoder):
        return changed
    return replace(changed, table_rows=len(rank.columns(decoder.vocab, "tokens in its vocabulary")))


def shard_part(part: Any, rank: Rank) -> Any:
    """The part that a rank has; the same one if all ranks compute it whole."""
    found = RULES.get(type(part))
    if found is not None:
        return found(part, rank)
    if isinstance(part, CONTAINERS):
        held = {name: getattr(part, name) for name in BRANCHES if name in {each.name for each in fields(part)}}
        changed = {name: shard_part(each, rank) for name, each in held.items()}
        return part if all(changed[name] is held[name] for name in held) else replace(part, **changed)
    return part


def _divides_norm(part: Attention | RowAttention, rank: Rank) -> bool:
    """Whether ranks can compute a norm over all heads of a token together: no head may be on two of them."""
    norm = part.qk_norm
    return norm is None or isinstance(norm, PerHead) or (isinstance(norm, RMSNorm) and part.kv_heads >= rank.size)


def attention_share(part: Attention, rank: Rank) -> HeadShare:
    """The heads of a rank that does not compute the part whole."""
    rank = replace(rank, whole_groups=True) if part.qk_norm_wide else rank  # no key may be in a sum twice
    return HeadShare.from_rank(part.heads, part.kv_heads, rank)


def _attention(part: Attention, rank: Rank) -> Attention:
    if part.qk_norm_wide and not _divides_norm(part, rank):
        return part
    share = attention_share(part, rank)
    first, heads, stripes = share.queries.start, len(share.queries), part.stripes
    return replace(
        part,
        heads=heads,
        kv_heads=len(share.keys),
        groups=share.groups,
        alibi=part.alibi[first : first + heads],
        stripes=None if stripes is None else stripes._replace(first=first),
    )


def _row_attention(part: RowAttention, rank: Rank) -> RowAttention:
    if part.qk_norm is not None and not _divides_norm(part, rank):
        return part
    share = HeadShare.from_rank(part.heads, part.kv_heads, rank)
    return replace(part, heads=len(share.queries), kv_heads=len(share.keys))


def _cross_attention(part: CrossAttention, rank: Rank) -> CrossAttention:
    share = HeadShare.from_rank(part.heads, part.kv_heads, rank)
    return replace(part, heads=len(share.queries), kv_heads=len(share.keys))


def _latent(part: LatentAttention, rank: Rank) -> LatentAttention:
    return replace(part, heads=len(rank.share(part.heads, "attention heads")))


def is_divisible(part: GatedMlp | Mlp) -> bool:
    """Whether the activation works on each number by itself, so that columns can be divided."""
    return isinstance(part.act, str) or bool(getattr(part.act, "elementwise", False))


def _mlp(part: Any, rank: Rank) -> Any:
    if not is_divisible(part):
        return part
    return replace(part, intermediate_size=len(rank.columns(part.intermediate_size, "columns in an MLP")))


def _moe(part: Moe, rank: Rank) -> Moe:
    shared = None if part.shared is None else shard_part(part.shared, rank)
    if rank.by_expert:
        return replace(part, held=rank.share(part.experts, "experts"), shared=shared)
    columns = rank.columns(part.expert.intermediate_size, "columns in an expert")
    return replace(part, expert=replace(part.expert, intermediate_size=len(columns)), shared=shared)


def _delta_net(part: GatedDeltaNet, rank: Rank) -> GatedDeltaNet:
    if part.key_heads < rank.size:
        return part
    keys = rank.share(part.key_heads, "heads of linear attention")
    return replace(part, key_heads=len(keys), heads=len(keys) * (part.heads // part.key_heads))


def _kimi_delta(part: KimiDelta, rank: Rank) -> KimiDelta:
    return part if part.heads < rank.size else replace(part, heads=len(rank.share(part.heads, "heads")))


def mamba2_shares(part: Mamba2, rank: Rank) -> HeadShare | None:
    """The heads and groups of a rank; None if they cannot be divided without dividing what is normalized together."""
    norms = 0 if part.norm is None else part.norm.groups
    if part.heads < rank.size or (norms and norms % part.groups):
        return None
    share = HeadShare.from_rank(part.heads, part.groups, rank)
    if norms == 0 or (part.groups >= rank.size and norms == part.groups):
        return share
    return None


def _mamba2(part: Mamba2, rank: Rank) -> Mamba2:
    share = mamba2_shares(part, rank)
    if share is None:
        return part
    norm = None if part.norm is None else replace(part.norm, groups=len(share.keys))
    return replace(part, heads=len(share.queries), groups=len(share.keys), norm=norm)


def _mamba1(part: Mamba1, rank: Rank) -> Mamba1:
    return replace(part, inner=len(rank.columns(part.inner, "channels of state")))


RULES: Mapping[type, Callable[[Any, Rank], Any]] = {
    Attention: _attention,
    RowAttention: _row_attention,
    CrossAttention: _cross_attention,
    LatentAttention: _latent,
    GatedMlp: _mlp,
    Mlp: _mlp,
    Moe: _moe,
    GatedDeltaNet: _delta_net,
    KimiDelta: _kimi_delta,
    Mamba2: _mamba2,
    Mamba1: _mamba1,
}
"""How a part is divided, for exactly these classes: one derived from them may have further matrices."""
