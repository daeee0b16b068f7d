"""Modules of blocks with cross-attention to an encoder input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.cross_attention import CrossAttention, CrossAttentionBlock
    from quire_models.step.forward_batch import ForwardBatch
    from quire_models.step.kv_cache import KVCache


@dataclass(frozen=True, slots=True, eq=False)
class EncoderSlotMapping:
    """Where N rows of encoder inputs are stored: slot_mapping int64 [N]. adapters: what the runtime bound for these
    rows.
    """

    slot_mapping: Tensor
    kv: KVCache
    adapters: Any = None


class CrossAttentionModule(nn.Module):
    """The module that the part `parts.cross_attention.CrossAttention` builds; it uses the KV cache of its block's
    self-attention.
    """

    def __init__(self, width: int, part: CrossAttention, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.layer = builder.layer
        self._ops = builder.ops
        q_size, kv_size = part.heads * part.head_dim, part.kv_heads * part.head_dim
        self.q = builder.projection(width, q_size, part.qkv_bias)
        self.kv = builder.for_many_rows().projection(width, {"k": kv_size, "v": kv_size}, part.qkv_bias)
        self.o = builder.projection(q_size, width, part.out_bias)
        self._sizes = [kv_size, kv_size]
        self._scale = part.head_dim**-0.5 if part.scale is None else part.scale

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]."""
        q = self.q(x, fwd).unflatten(-1, (-1, self.part.head_dim))  # [tokens, heads, head_dim]
        k_pool, v_pool = fwd.kv.k[self.layer], fwd.kv.v[self.layer]
        assert fwd.cross_attention is not None, "a step of a model with cross-attention needs `cross_attention`"
        seen = self._ops.paged_attention(q, k_pool, v_pool, fwd.cross_attention, self._scale)
        return self.o(seen.flatten(1), fwd)

    def store(self, rows: Tensor, slots: EncoderSlotMapping) -> None:
        """Write keys and values of encoder-input rows, [N, width], to their slots."""
        parts = self.kv(rows, slots).split(self._sizes, -1)
        k, v = (part.unflatten(-1, (-1, self.part.head_dim)) for part in parts)  # [N, kv_heads, head_dim]
        self._ops.write_kv(k, v, slots.kv.k[self.layer], slots.kv.v[self.layer], slots.slot_mapping)


class CrossAttentionBlockModule(nn.Module):
    """The module that the part `parts.cross_attention.CrossAttentionBlock` builds."""

    def __init__(self, width: int, part: CrossAttentionBlock, builder: ModuleBuilder) -> None:
        super().__init__()
        self._norm_after = part.norm_after
        self.attn = part.attn.build(width, builder)
        self.cross = part.cross.build(width, builder)
        self.mlp = part.mlp.build(width, builder)
        self.attn_in = part.norm.build(width, builder)
        self.cross_in = part.norm.build(width, builder)
        self.mlp_in = part.norm.build(width, builder)

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]. May overwrite x."""
        if self._norm_after:
            x = self.attn_in(x + self.attn(x, fwd))
            x = self.cross_in(x + self.cross(x, fwd))
            return self.mlp_in(x + self.mlp(x, fwd))
        x = x + self.attn(self.attn_in(x), fwd)
        x = x + self.cross(self.cross_in(x), fwd)
        return x.add_(self.mlp(self.mlp_in(x), fwd))

    def store(self, rows: Tensor, slots: EncoderSlotMapping) -> None:
        self.cross.store(rows, slots)
