"""The attention ops. The letters of their shapes are explained in `quire_kernels.ops`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from quire_kernels.ops import AttentionMetadata


OPTIONS = ("sinks", "slopes", "chunk", "value_dim", "biases", "stripes", "groups")
"""What only some models ask of `paged_attention`; an implementation states which of these it has
(`OpImpl.attention_options`), and gets no others.

sinks: a score for each head that has no value (arXiv 2309.17453). slopes: ALiBi (arXiv 2108.12409). chunk: neighboring
positions that attend to each other (Llama 4). value_dim: values are the first value_dim elements of the keys, and pools
of values are empty (latent attention, arXiv 2405.04434); the name stands for any width of values that is not that of
keys. biases: of relative positions (T5, arXiv 1910.10683). stripes: block-sparse attention (arXiv 2404.14219). groups:
a rank of several lacks some query heads of a key-value head.
"""


class Stripes(NamedTuple):
    """Which blocks of `block` positions a token attends to: the `local` last ones, and every `stride`-th.

    All tokens of head h attend to the blocks b with (b + 1 + (first + h) * step) divisible by `stride`. first: number
    of heads before those of this rank. Not to be combined with windows, chunks, biases, slopes and visible ends.
    """

    block: int
    local: int
    stride: int
    step: int = 0
    first: int = 0


class HeadGroups(NamedTuple):
    """Groups of `size` query heads share a key-value head; query head 0 is head `first` of the first group.

    So a rank may have parts of the first and of the last group. first < size; every key-value head has a query head.
    """

    size: int
    first: int = 0


@dataclass(frozen=True, eq=False)
class PositionBiases:
    """Biases of relative positions (T5, arXiv 1910.10683).

    values: float32 [H, 2 R + 1] with R > 0, by how far ahead of a token a key is; keys further away have those of R.
    """

    values: Tensor
    _padded: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    @property
    def reach(self) -> int:
        return self.values.shape[1] // 2

    def at(self, ahead: Tensor) -> Tensor:
        """Relative positions [...] -> [H, ...]."""
        return self.values[:, ahead.clamp(-self.reach, self.reach) + self.reach]

    def padded(self, margin: int) -> Tensor:
        """[H * (2 (R + margin) + 1)], computed once: `margin` keys lie side by side wherever the first of them is."""
        if margin not in self._padded:
            from torch.nn.functional import pad

            self._padded[margin] = pad(self.values[None], (margin, margin), mode="replicate").flatten()
        return self._padded[margin]


class PagedAttention(Protocol):
    """Attention of each token to positions of its own seq in the KV cache: up to its own, or up to `rows.visible_ends`.

    token t of row r is at position p = contexts[r] - query_starts[r+1] + t; it attends to positions i with p - i <
    window, i // chunk = p // chunk and i < visible_ends[t], which is p + 1 where `rows.visible_ends` is None; and with
    stripes, if p // block - i // block < local or (i // block + 1 + (first + h) * step) % stride = 0
    s = scale * q[t] · k[i];  s = softcap * tanh(s / softcap) if softcap;  s = s + slopes[h] * (i - p) if slopes;
    s = s + biases.at(i - p)[h] if biases; not both of them;
    out[t] = Σ exp(s[i]) v[i] / (Σ exp(s[i]) + exp(sinks[h]) if sinks);  v[i] = k[i, :value_dim] if value_dim
    query head h uses key-value head h // (H / K), or (groups.first + h) // groups.size; scores and sums in float32
    q [T, H, D]; k_pool [pages, page_size, K, D]; v_pool [pages, page_size, K, V]; sinks, slopes [H] -> [T, H, V]
    """

    def __call__(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        rows: AttentionMetadata,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        *,
        sinks: Tensor | None = None,
        slopes: Tensor | None = None,
        chunk: int | None = None,
        value_dim: int | None = None,
        biases: PositionBiases | None = None,
        stripes: Stripes | None = None,
        groups: HeadGroups | None = None,
    ) -> Tensor: ...


def in_whole_groups(
    attention: PagedAttention,
    groups: HeadGroups,
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    rows: AttentionMetadata,
    scale: float,
    window: int | None,
    softcap: float | None,
    *,
    sinks: Tensor | None,
    slopes: Tensor | None,
    biases: PositionBiases | None,
    stripes: Stripes | None,
    **others: Any,
) -> Tensor:
    """`paged_attention` by an implementation that needs whole groups: missing heads have queries of zeros."""
    from torch.nn.functional import pad

    heads = q.shape[1]
    sides = groups.first, k_pool.shape[2] * groups.size - groups.first - heads
    found = attention(
        pad(q, (0, 0, *sides)),
        k_pool,
        v_pool,
        rows,
        scale,
        window,
        softcap,
        sinks=None if sinks is None else pad(sinks, sides),
        slopes=None if slopes is None else pad(slopes, sides),
        biases=None if biases is None else PositionBiases(pad(biases.values, (0, 0, *sides))),
        stripes=None if stripes is None else stripes._replace(first=stripes.first - groups.first),
        **others,
    )
    return found[:, groups.first : groups.first + heads]


class ReadKv(Protocol):
    """Read keys and values from the KV cache, whatever the layout of its pages: for attention of a plugin's own.

    k[n] = k_pool.view(-1, K, D)[slots[n]];  v likewise;  quantized pages are dequantized
    k_pool [pages, page_size, K, D]; v_pool [pages, page_size, K, V]; slots int64 [N], each page * page_size + offset;
    dtype: of the result -> (k [N, K, D], v [N, K, V])
    """

    def __call__(self, k_pool: Tensor, v_pool: Tensor, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]: ...


class LinearHeads(Protocol):
    """Bind one matrix for each head and apply it to that head: out[..., h, :] = weight[h] · x[..., h, :].

    weight [H, N, M]; the bound function maps x [T, H, M] -> [T, H, N], data type of x.
    """

    def __call__(self, weight: Tensor) -> Callable[[Tensor], Tensor]: ...


class RowAttentionOp(Protocol):
    """Bidirectional attention of each token to the tokens of its own row, without pages.

    token t of row r attends to tokens i of that row with |t - i| < window
    s = scale * q[t] · k[i];  s = s + biases.at(i - t)[h] if biases;  out[t] = Σ softmax(s)[i] v[i]
    query head h uses key-value head h // (H / K); sums in float32; only query_starts and lens_host of `rows` are used
    q [T, H, D]; k, v [T, K, D] (any strides between tokens) -> [T, H, D]
    """

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rows: AttentionMetadata,
        scale: float,
        window: int | None = None,
        biases: PositionBiases | None = None,
    ) -> Tensor: ...
