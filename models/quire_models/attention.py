"""Self-attention over pages: project, norm, turn, store, attend, project.

It knows nothing of seqs or phases: `Forward` says which tokens belong together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from quire_models.norm_parts import PerHead

if TYPE_CHECKING:
    from quire_models.forward import Forward
    from quire_models.make import Make
    from quire_models.parts import Attention


class SelfAttention(nn.Module):
    """The module of `parts.Attention`."""

    def __init__(self, width: int, part: Attention, make: Make) -> None:
        super().__init__()
        self.part = part
        self.layer = make.layer
        self._ops = make.ops
        q_size, kv_size = part.heads * part.head_dim, part.kv_heads * part.head_dim
        self.qkv = make.projection(width, {"q": q_size, "k": kv_size, "v": kv_size}, part.qkv_bias)
        self.o = make.projection(q_size, width, part.out_bias)
        self.q_norm, self.k_norm = self._norm(part.heads, make), self._norm(part.kv_heads, make)
        self._angles = make.angles(part.rope) if part.rope else None
        self._sizes = [q_size, kv_size, kv_size]
        self._scale = part.head_dim**-0.5 if part.scale is None else part.scale

    def _norm(self, heads: int, make: Make) -> nn.Module | None:
        """Of the queries or the keys, which have so many heads."""
        norm, head_dim = self.part.qk_norm, self.part.head_dim
        if isinstance(norm, PerHead):
            return norm.build_heads(heads, head_dim, make)
        width = heads * head_dim if self.part.qk_norm_wide else head_dim
        return None if norm is None else norm.build(width, make)

    def forward(self, x: Tensor, fwd: Forward) -> Tensor:
        """x [tokens, width] -> [tokens, width]; stores the tokens' keys and values on the way."""
        part, ops = self.part, self._ops
        q, k, v = self._heads(self.qkv(x, fwd))
        k_pool, v_pool = fwd.kv.k[self.layer], fwd.kv.v[self.layer]
        if self._angles is None:
            ops.write_kv(k, v, k_pool, v_pool, fwd.slots)
        else:
            assert part.rope is not None
            cos, sin = self._angles.of(fwd)
            q = ops.rotary_write_kv(q, k, v, cos, sin, k_pool, v_pool, fwd.slots, part.rope.interleaved)
        seen = ops.paged_attention(q, k_pool, v_pool, fwd.rows, self._scale, part.window, part.softcap)
        return self.o(seen.flatten(1), fwd)

    def _heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [tokens, heads, head_dim], normed if the part says so."""
        q, k, v = qkv.split(self._sizes, -1)
        wide = self.part.qk_norm_wide
        if self.q_norm is not None and self.k_norm is not None and wide:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.unflatten(-1, (-1, self.part.head_dim)) for t in (q, k, v))
        if self.q_norm is not None and self.k_norm is not None and not wide:
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k, v
