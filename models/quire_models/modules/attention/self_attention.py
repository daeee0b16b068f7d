"""Self-attention over pages: project, normalize, rotate, store, attend, gate, project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from quire_models.modules.attention.query_scales import query_scales, scaled_queries
from quire_models.parts.norms import PerHead

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.decoder import Attention
    from quire_models.step.forward_batch import ForwardBatch


class SelfAttention(nn.Module):
    """The module that the part `parts.decoder.Attention` builds.

    layer: the block whose pages it reads; also writes, unless they are another block's.
    """

    def __init__(self, width: int, part: Attention, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.layer = builder.layer if part.kv_from is None else part.kv_from
        self._ops = builder.ops
        sizes = _sizes(part)
        if part.kv_from is None:
            self.qkv = builder.projection(width, sizes, part.qkv_bias)
            self.k_norm = self._norm(part.kv_heads, builder)
        else:
            self.q = builder.projection(width, sizes["q"], part.qkv_bias)
            self.k_norm = None
        self.o = builder.projection(part.heads * part.value_width, part.out_width or width, part.out_bias)
        self.q_norm = self._norm(part.heads, builder)
        self.v_norm = part.v_norm.build(part.value_width, builder) if part.v_norm and part.kv_from is None else None
        self.sinks = builder.parameter(part.heads) if part.sinks else None
        self._angles = builder.angles(part.rope) if part.rope else None
        self._scales = query_scales(part.query_scaling, part.head_dim, builder)
        self._sizes = list(sizes.values())
        self._scale = part.head_dim**-0.5 if part.scale is None else part.scale
        self.position_bias = part.position_bias.build(part.heads, builder) if part.position_bias else None
        self._slopes = builder.constant(part.alibi) if part.alibi else None
        self.process_weights()

    def process_weights(self) -> None:
        """Collect the options of the op, so that a step passes only those that the part has."""
        part, options = self.part, dict[str, Any]()
        if self.sinks is not None:
            options["sinks"] = self.sinks.data.float()
        if self._slopes is not None:
            options["slopes"] = self._slopes
        if self.position_bias is not None:
            options["biases"] = self.position_bias.by_distance()
        names = "chunk", "stripes", "groups"
        options |= {name: value for name in names if (value := getattr(part, name)) is not None}
        self._options = options

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
        k_pool, v_pool = fwd.kv.k[self.layer], fwd.kv.v[self.layer]
        if part.kv_from is None:
            *projected, gate = self._split(self.qkv(x, fwd))
            q = self._store(*self._heads(projected), k_pool, v_pool, fwd)
        else:
            q, gate = self._split_gate(_clipped(self.q(x, fwd), part.clip))
            q = self._queries(q, fwd)
        q = scaled_queries(q, self._scales, ops, fwd)
        seen = ops.paged_attention(
            q, k_pool, v_pool, fwd.rows, self._scale, part.window, part.softcap, **self._options
        ).flatten(1)
        return self.o(seen if gate is None else seen * ops.act(gate, "sigmoid"), fwd)

    def _split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys, values, each [tokens, columns], and the gate."""
        part = self.part
        if part.v_from_k:
            q, k = _clipped(qkv, part.clip).split(self._sizes, -1)
            v = k
        else:
            q, k, v = _clipped(qkv, part.clip).split(self._sizes, -1)
        q, gate = self._split_gate(q)
        return q, k, v, gate

    def _split_gate(self, q: Tensor) -> tuple[Tensor, Tensor | None]:
        """Queries and, if the part has one, the gate."""
        if not self.part.gate:
            return q, None
        size = self.part.heads * self.part.head_dim
        q, gate = q.split([size, self.part.heads * self.part.value_width], -1)
        return q, gate

    def _heads(self, projected: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [tokens, heads, head_dim], with the norms that come before the rotation."""
        part = self.part
        q, k, v = projected
        early = not part.norm_after_rope and self.q_norm is not None and self.k_norm is not None
        if early and part.qk_norm_wide:
            q, k = self.q_norm(q), self.k_norm(k)  # type: ignore[misc]
        q, k, v = (
            t.unflatten(-1, (-1, size)) for t, size in ((q, part.head_dim), (k, part.head_dim), (v, part.value_width))
        )
        if self.v_norm is not None:
            v = self.v_norm(v)
        if early and not part.qk_norm_wide:
            q, k = self.q_norm(q), self.k_norm(k)  # type: ignore[misc]
        return q, k, v

    def _store(self, q: Tensor, k: Tensor, v: Tensor, k_pool: Tensor, v_pool: Tensor, fwd: ForwardBatch) -> Tensor:
        """Rotate queries and keys, store keys and values; returns the queries."""
        part, ops = self.part, self._ops
        late = part.norm_after_rope and self.q_norm is not None and self.k_norm is not None
        if self._angles is not None and part.rope is not None:
            cos, sin = self._angles.for_step(fwd)
            if not late:
                return ops.rotary_write_kv(q, k, v, cos, sin, k_pool, v_pool, fwd.slot_mapping, part.rope.interleaved)
            q, k = ops.rotary(q, k, cos, sin, part.rope.interleaved)
        if late:
            q, k = self.q_norm(q), self.k_norm(k)  # type: ignore[misc]
        ops.write_kv(k, v, k_pool, v_pool, fwd.slot_mapping)
        return q

    def _queries(self, q: Tensor, fwd: ForwardBatch) -> Tensor:
        """Queries of a block that stores nothing, normalized and rotated: [tokens, heads, head_dim]."""
        part, norm = self.part, self.q_norm
        if norm is not None and part.qk_norm_wide:
            q = norm(q)
        q = q.unflatten(-1, (-1, part.head_dim))
        if norm is not None and not part.qk_norm_wide and not part.norm_after_rope:
            q = norm(q)
        if self._angles is not None and part.rope is not None:
            cos, sin = self._angles.for_step(fwd)
            q = self._ops.rotary(q, q[:, :0], cos, sin, part.rope.interleaved)[0]
        return norm(q) if norm is not None and part.norm_after_rope else q


def _sizes(part: Attention) -> dict[str, int]:
    """Outputs of the fused projection, by name; the gate follows the queries."""
    queries = part.heads * (part.head_dim + (part.value_width if part.gate else 0))
    sizes = {"q": queries, "k": part.kv_heads * part.head_dim}
    return sizes if part.v_from_k else sizes | {"v": part.kv_heads * part.value_width}


def _clipped(x: Tensor, bound: float | None) -> Tensor:
    return x if bound is None else x.clamp(-bound, bound)
