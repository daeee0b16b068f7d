"""The attention ops. The letters of their shapes are explained in `quire_kernels.ops`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from quire_kernels.ops import AttentionMetadata


class PagedAttention(Protocol):
    """Attention of each token to positions of its own seq in the KV cache: up to its own, or up to `rows.visible_ends`.

    token t of row r is at position p = contexts[r] - query_starts[r+1] + t; it attends to positions i with p - i <
    window and i < visible_ends[t], which is p + 1 where `rows.visible_ends` is None
    s = scale * q[t] · k[i];  s = softcap * tanh(s / softcap) if softcap;  out[t] = Σ softmax(s)[i] v[i]
    query head h uses key-value head h // (H / K); scores and sums in float32
    q [T, H, D]; k_pool, v_pool [pages, page_size, K, D], the step's tokens already written -> [T, H, D]
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
    ) -> Tensor: ...


class RowAttentionOp(Protocol):
    """Bidirectional attention of each token to the tokens of its own row, without pages.

    token t of row r attends to tokens i of that row with |t - i| < window
    s = scale * q[t] · k[i];  out[t] = Σ softmax(s)[i] v[i]
    query head h uses key-value head h // (H / K); sums in float32; only query_starts and lens_host of `rows` are used
    q [T, H, D]; k, v [T, K, D] (any strides between tokens) -> [T, H, D]
    """

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, rows: AttentionMetadata, scale: float, window: int | None = None
    ) -> Tensor: ...
