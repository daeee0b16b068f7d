"""Self-attention over pages: project, normalize, rotate, store, attend, project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from quire_models.parts.norms import PerHead

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.decoder import Attention
    from quire_models.step.forward_batch import ForwardBatch


class SelfAttention(nn.Module):
    """The module that the part `parts.decoder.Attention` builds."""

    def __init__(self, width: int, part: Attention, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.layer = builder.layer
        self._ops = builder.ops
        q_size, kv_size = part.heads * part.head_dim, part.kv_heads * part.head_dim
        self.qkv = builder.projection(width, {"q": q_size, "k": kv_size, "v": kv_size}, part.qkv_bias)
        self.o = builder.projection(q_size, width, part.out_bias)
        self.q_norm, self.k_norm = self._norm(part.heads, builder), self._norm(part.kv_heads, builder)
        self._angles = builder.angles(part.rope) if part.rope else None
        self._sizes = [q_size, kv_size, kv_size]
        self._scale = part.head_dim**-0.5 if part.scale is None else part.scale

    def _norm(self, heads: int, builder: ModuleBuilder) -> nn.Module | None:
        """The norm of the queries or of the keys, which have `heads` heads."""
        norm, head_dim = self.part.qk_norm, self.part.head_dim
        if isinstance(norm, PerHead):
            return norm.build_heads(heads, head_dim, builder)
        width = heads * head_dim if self.part.qk_norm_wide else head_dim
        return None if norm is None else norm.build(width, builder)

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]; writes the tokens' keys and values to the KV cache."""
        part, ops = self.part, self._ops
        q, k, v = self._heads(self.qkv(x, fwd))
        k_pool, v_pool = fwd.kv.k[self.layer], fwd.kv.v[self.layer]
        if self._angles is None:
            ops.write_kv(k, v, k_pool, v_pool, fwd.slot_mapping)
        else:
            assert part.rope is not None
            cos, sin = self._angles.for_step(fwd)
            q = ops.rotary_write_kv(q, k, v, cos, sin, k_pool, v_pool, fwd.slot_mapping, part.rope.interleaved)
        seen = ops.paged_attention(q, k_pool, v_pool, fwd.rows, self._scale, part.window, part.softcap)
        return self.o(seen.flatten(1), fwd)

    def _heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [tokens, heads, head_dim], normalized if the part has qk_norm."""
        q, k, v = qkv.split(self._sizes, -1)
        wide = self.part.qk_norm_wide
        if self.q_norm is not None and self.k_norm is not None and wide:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.unflatten(-1, (-1, self.part.head_dim)) for t in (q, k, v))
        if self.q_norm is not None and self.k_norm is not None and not wide:
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k, v
