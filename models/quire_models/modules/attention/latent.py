"""Latent attention over pages: compress, normalize, rotate, store, attend to the compressed rows, expand, project.

Keys and values are never expanded: queries are multiplied by the matrix that expands keys, and outputs by the one that
expands values ("absorbed" in the paper), so a token's row is read once for all heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from quire_kernels.low_rank import TokenSlots
from quire_models.modules.attention.query_scales import query_scales, scaled_queries

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.modules.projection import Projection
    from quire_models.parts.attention.latent import LatentAttention
    from quire_models.step.forward_batch import ForwardBatch


class LatentSelfAttention(nn.Module):
    """The module that the part `parts.attention.latent.LatentAttention` builds.

    Matrices: `q`, or `q_a` and `q_b`, whose outputs are the plain dimensions of all heads, then the rotary ones;
    `kv_a`: the compressed row, then its rotary key; `kv_b`: the keys of all heads, then the values of all heads; `o`.
    """

    def __init__(self, width: int, part: LatentAttention, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.layer = builder.layer
        self._ops = builder.ops
        heads, inputs = part.heads, part.q_rank or width
        self._q_sizes = [heads * part.plain_dim, heads * part.rope_dim]
        self.q_a = builder.projection(width, part.q_rank, part.bias) if part.q_rank else None
        self.q_a_norm = part.norm.build(part.q_rank, builder) if part.q_rank else None
        matrix = builder.projection(inputs, sum(self._q_sizes))
        self.q: Projection | None = None if part.q_rank else matrix
        self.q_b: Projection | None = matrix if part.q_rank else None
        self.kv_a = builder.projection(width, part.latent_dim + part.rope_dim, part.bias)
        self.kv_a_norm = part.norm.build(part.latent_dim, builder)
        self.kv_b = builder.projection(part.latent_dim, heads * (part.plain_dim + part.value_dim))
        self.kv_b.is_absorbed = True
        self.o = builder.projection(heads * part.value_dim, width, part.bias)
        self._angles = builder.angles(part.rope) if part.rope else None
        self._scale = (part.plain_dim + part.rope_dim) ** -0.5 if part.scale is None else part.scale
        self._scales = query_scales(part.query_scaling, part.latent_dim + part.rope_dim, builder)
        self._identity = (part.latent_dim, builder.dtype, builder.device)
        self._absorbed: tuple[Any, Any] | None = None

    def process_weights(self) -> None:
        """Take the matrices that expand keys and values apart again after the weights have changed."""
        self._absorbed = None

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]; writes the tokens' compressed rows to the KV cache."""
        part, ops = self.part, self._ops
        plain, turned = self._queries(x, fwd)
        latent, key = self.kv_a(x, fwd).split([part.latent_dim, part.rope_dim], -1)
        latent = _scaled(self.kv_a_norm(latent), part.latent_factor).unflatten(-1, (-1, part.latent_dim))
        key = key.unflatten(-1, (-1, part.rope_dim))  # [tokens, 1, rope_dim]
        if self._angles is not None and part.rope is not None:
            cos, sin = self._angles.for_step(fwd)
            turned, key = ops.rotary(turned, key, cos, sin, part.rope.interleaved)
        k_pool, v_pool = fwd.kv.k[self.layer], fwd.kv.v[self.layer]
        ops.write_kv(torch.cat((latent, key), -1), None, k_pool, v_pool, fwd.slot_mapping)
        adapted = fwd.adapters is not None and self.kv_b.delta is not None and not _on_device(fwd.adapters)
        expand = AdaptedExpansion(self, fwd) if adapted else self
        queries = scaled_queries(torch.cat((expand.compressed_queries(plain), turned), -1), self._scales, ops, fwd)
        seen = ops.paged_attention(
            queries, k_pool, v_pool, fwd.rows, self._scale, value_dim=part.latent_dim
        )  # [tokens, heads, latent_dim]
        return self.o(expand.values(seen).flatten(1), fwd)

    def _queries(self, x: Tensor, fwd: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Plain and rotary dimensions, [tokens, heads, …]."""
        if self.q is not None:
            q = self.q(x, fwd)
        else:
            assert self.q_a is not None
            assert self.q_a_norm is not None
            assert self.q_b is not None
            q = self.q_b(_scaled(self.q_a_norm(self.q_a(x, fwd)), self.part.q_factor), fwd)
        plain, turned = q.split(self._q_sizes, -1)
        return plain.unflatten(-1, (-1, self.part.plain_dim)), turned.unflatten(-1, (-1, self.part.rope_dim))

    def compressed_queries(self, plain: Tensor) -> Tensor:
        """[tokens, heads, plain_dim] -> [tokens, heads, latent_dim]: for dot products with compressed rows."""
        found: Tensor = self._matrices()[0](plain)
        return found

    def values(self, seen: Tensor) -> Tensor:
        """[tokens, heads, latent_dim] -> [tokens, heads, value_dim]: the expanded outputs."""
        found: Tensor = self._matrices()[1](seen)
        return found

    def _matrices(self) -> tuple[Any, Any]:
        """Bound matrices of the heads, for queries and for outputs."""
        if self._absorbed is None:
            keys, values = self.split_heads(self.expansion(None))
            bind = self._ops.linear_heads
            self._absorbed = bind(keys.transpose(1, 2).contiguous()), bind(values.contiguous())
        return self._absorbed

    def expansion(self, adapters: Any) -> Tensor:
        """The matrix `kv_b` [outputs, latent_dim] with the adapters of one token applied, if there are any."""
        width, dtype, device = self._identity
        rows = torch.eye(width, dtype=dtype, device=device)
        y = self.kv_b.multiply(rows)
        if adapters is not None and self.kv_b.delta is not None:
            y = self.kv_b.delta(y, rows, adapters)
        return y.T

    def changes_expansion(self, uses: tuple[Any, ...]) -> bool:
        """Whether adapters, as `_uses` describes them, may change `kv_b`: deltas may tell which slots are empty."""
        is_empty = getattr(self.kv_b.delta, "is_empty", None)
        return bool(uses) and (is_empty is None or not all(is_empty(slot, runtime) for runtime, slot, _ in uses))

    def split_heads(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """[outputs, latent_dim] as keys [heads, plain_dim, latent_dim] and values [heads, value_dim, latent_dim]."""
        part = self.part
        keys, values = matrix.split([part.heads * part.plain_dim, part.heads * part.value_dim])
        return keys.unflatten(0, (part.heads, -1)), values.unflatten(0, (part.heads, -1))


class AdaptedExpansion:
    """The products with `kv_b` in a step with adapters: each chunk has its own matrix, shared by chunks with the same
    adapters.
    """

    def __init__(self, module: LatentSelfAttention, fwd: ForwardBatch) -> None:
        if AdaptedExpansion not in fwd.step_cache:
            fwd.step_cache[AdaptedExpansion] = _chunks_by_use(fwd)
        self._module, rows = module, module.part.latent_dim
        self._groups: list[tuple[Tensor, Any, Any]] = []
        for uses, tokens in fwd.step_cache[AdaptedExpansion].items():
            if not module.changes_expansion(uses):
                self._groups.append((tokens, None, None))
                continue
            adapters = _selected(fwd.adapters, tokens[:1].expand(rows))
            self._groups.append((tokens, *module.split_heads(module.expansion(adapters))))

    def compressed_queries(self, plain: Tensor) -> Tensor:
        """[tokens, heads, plain_dim] -> [tokens, heads, latent_dim], each chunk by its own matrix."""
        out = plain.new_empty(*plain.shape[:2], self._module.part.latent_dim)
        for tokens, keys, _ in self._groups:
            if keys is None:
                out[tokens] = self._module.compressed_queries(plain[tokens])
            else:
                out[tokens] = torch.bmm(plain[tokens].transpose(0, 1), keys).transpose(0, 1)
        return out

    def values(self, seen: Tensor) -> Tensor:
        """[tokens, heads, latent_dim] -> [tokens, heads, value_dim], each chunk by its own matrix."""
        out = seen.new_empty(*seen.shape[:2], self._module.part.value_dim)
        for tokens, _, values in self._groups:
            if values is None:
                out[tokens] = self._module.values(seen[tokens])
            else:
                out[tokens] = torch.bmm(seen[tokens].transpose(0, 1), values.transpose(1, 2)).transpose(0, 1)
        return out


def _chunks_by_use(fwd: ForwardBatch) -> dict[tuple[Any, ...], Tensor]:
    """The tokens of all chunks with the same adapters, by these; the same for all blocks of a step."""
    groups: dict[Any, list[Tensor]] = {}
    for first, last in pairwise([int(start) for start in fwd.query_starts]):
        if first < last:
            tokens = torch.arange(first, last, device=fwd.tokens.device)
            groups.setdefault(_uses(fwd.adapters, first), []).append(tokens)
    return {uses: torch.cat(tokens) for uses, tokens in groups.items()}


def _on_device(adapters: Any) -> bool:
    """Whether the step is captured: adapters of such steps do not change `kv_b` (`Projection.is_absorbed`)."""
    bound = adapters.values() if isinstance(adapters, Mapping) else (adapters,)
    return any(isinstance(each, TokenSlots) for each in bound)


def _uses(adapters: Any, token: int) -> tuple[Any, ...]:
    """Which adapters a token uses, and with which weight: (runtime, slot, weight) of each."""
    bound = adapters.items() if isinstance(adapters, Mapping) else ((0, adapters),)
    found = []
    for runtime, segments in bound:
        host = segments.host
        for s, slot in enumerate(host.slots.tolist()):
            entries = slice(int(host.starts[s]), int(host.starts[s + 1]))
            at = (host.tokens[entries] == token).nonzero()[0]
            found += [(runtime, slot, float(host.weights[entries][i])) for i in at]
    return tuple(found)


def _selected(adapters: Any, rows: Tensor) -> Any:
    if isinstance(adapters, Mapping):
        return {runtime: segments.select(rows) for runtime, segments in adapters.items()}
    return adapters.select(rows)


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1.0 else x * factor
