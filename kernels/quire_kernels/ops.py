"""The op table: what each operation means, and the signature every implementation of it has.

An implementation may be plain torch, C++, or written for a GPU; `reference.py` is the meaning running.
Shapes: T tokens of one step, H query heads, K key-value heads (H is a multiple of K), D head dimension,
R rows (one chunk of one seq each), P pages of the longest row. Ops know neither models nor scheduling.

"May overwrite x": the caller never reads x again, so an implementation can work in place.
Results that depend on other tokens of the step by more than the order of summation are wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from quire_kernels.attention import PagedAttention, RowAttention
from quire_kernels.low_rank import LowRank
from quire_kernels.sampling import Argmax, Draw, Logprobs, MaskLogits


@dataclass(slots=True)
class Rows:
    """Which tokens of the step belong together, and where their keys and values lie.

    Row r is the tokens query_starts[r] … query_starts[r+1]-1: the last ones of a seq whose first
    contexts[r] positions are in the pool, at pages[r, p // page_size], place p % page_size.

    query_starts: int32 [R + 1]. contexts: int32 [R]. pages: int32 [R, P]; entries beyond a row's context
    may be anything. lens_host and contexts_host: tokens and context of each row, on the host.
    memo: implementations may keep here what they derive from a step, for the blocks that follow.
    ends: int32 [T], the position before which what each token sees ends, not beyond its row's context and not before
    its own; None where each token sees nothing behind itself, as in nearly every step. ends_host: the same on the host.
    """

    query_starts: Tensor
    contexts: Tensor
    pages: Tensor
    lens_host: np.ndarray[Any, np.dtype[np.int32]]
    contexts_host: np.ndarray[Any, np.dtype[np.int32]]
    max_query: int
    max_context: int
    memo: dict[Any, Any] = field(default_factory=dict)
    ends: Tensor | None = None
    ends_host: np.ndarray[Any, np.dtype[np.int32]] | None = None

    @classmethod
    def unpaged(cls, lens: Sequence[int] | np.ndarray[Any, np.dtype[np.integer[Any]]], device: torch.device) -> Rows:
        """Rows of so many tokens each that have no pages: for `row_attention` outside any step, as in towers."""
        host = np.asarray(lens, np.int32)
        starts = torch.from_numpy(np.cumsum([0, *host], dtype=np.int32)).to(device)
        pages = torch.empty(len(host), 0, dtype=torch.int32, device=device)
        most = int(host.max(initial=0))
        return cls(starts, torch.from_numpy(host).to(device), pages, host, host, most, most)


class RmsNorm(Protocol):
    """Normalise the last dimension by its root mean square (arXiv 1910.07467).

    out = x / sqrt(mean(x²) + eps) * weight           in float32, rounded once at the end
    x [..., N]; weight [N] (any offset is already in it; may be float32) -> [..., N] like x
    """

    def __call__(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See the class."""
        ...


class AddRmsNorm(Protocol):
    """Add to the residual stream and normalise the sum.

    residual = residual + x;  normed = rms_norm(residual, weight, eps)
    x, residual [T, N]; weight [N] -> (normed, residual), both [T, N]. May overwrite x and residual.
    """

    def __call__(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See the class."""
        ...


class LayerNorm(Protocol):
    """Normalise the last dimension to mean 0 and variance 1 (arXiv 1607.06450).

    out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias
    x [..., N]; weight, bias [N] or None -> [..., N] like x
    """

    def __call__(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        """See the class."""
        ...


class Rotary(Protocol):
    """Turn pairs of dimensions of every head by the token's angles.

    a, b = x[..., :N], x[..., N:2N]  (interleaved: x[..., 0:2N:2], x[..., 1:2N:2])
    a, b = a cos - b sin, b cos + a sin;  dimensions from 2N on stay
    q [T, H, D]; k [T, K, D]; cos, sin float32 [T, N], 2N ≤ D -> (q, k). May overwrite q and k.
    """

    def __call__(
        self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
    ) -> tuple[Tensor, Tensor]:
        """See the class."""
        ...


class WriteKv(Protocol):
    """Store keys and values of the step's tokens in their slots.

    k_pool.view(-1, K, D)[slots[t]] = k[t];  likewise v;  slots differ
    k, v [T, K, D] (any strides between tokens and heads); k_pool, v_pool [pages, page_size, K, D]; slots int64 [T]
    """

    def __call__(self, k: Tensor, v: Tensor, k_pool: Tensor, v_pool: Tensor, slots: Tensor) -> None:
        """See the class."""
        ...


class RotaryWriteKv(Protocol):
    """`rotary`, then `write_kv` of the turned keys; gives the turned queries.

    q, k = rotary(q, k, cos, sin, interleaved);  write_kv(k, v, k_pool, v_pool, slots);  out = q
    shapes as there -> q [T, H, D]. May overwrite q and k.
    """

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos: Tensor,
        sin: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        slots: Tensor,
        interleaved: bool = False,
    ) -> Tensor:
        """See the class."""
        ...


class GatedAct(Protocol):
    """Activation of a gated MLP: out = act(gate) * up, where gate, up = halves of the last dimension.

    gate_up [..., 2N]; act one of ACTS -> [..., N]
    """

    def __call__(self, gate_up: Tensor, act: str) -> Tensor:
        """See the class."""
        ...


class Act(Protocol):
    """Activation of each element: out = act(x).

    x [..., N]; act one of ACTS -> [..., N]. May overwrite x.
    """

    def __call__(self, x: Tensor, act: str) -> Tensor:
        """See the class."""
        ...


class Product(Protocol):
    """A matrix that was bound.

    product(x) = x weightᵀ + bias;  x [..., M] -> [..., N] like x, or in float32 if that is asked for (not rounded first
    where that costs nothing). If it has a method `unpacked(rows)`, it holds the weight itself, and gives rows of it
    (int64 ids, None = all): then nobody else need keep the weight. If it has a method `argmax(x)`, x [rows, M], that
    gives for each row what the op `argmax` gives for product(x, float32=True), as a list. If it
    has `element_bytes`, it reads so many bytes for an element of the weight (else as many as its data type has).
    """

    def __call__(self, x: Tensor, float32: bool = False) -> Tensor:
        """See the class."""
        ...


class Linear(Protocol):
    """Bind a matrix once, multiply by it often: an implementation may pack the weight when it binds.

    linear(weight, bias)(x) = x weightᵀ + bias
    weight [N, M]; bias [N] or None. Bound again whenever the weight has changed. gated: nothing but `gated_act` will
    read the outputs, as a rule (a hint for packing, without effect on what is computed).
    """

    def __call__(self, weight: Tensor, bias: Tensor | None, gated: bool = False) -> Product:
        """See the class."""
        ...


class LinearMany(Linear, Protocol):
    """`linear` for matrices that many rows are multiplied by at once, as in encoders and towers.

    The same meaning and signature; an implementation may take more memory for a weight where that makes it faster.
    """


class LinearInt8(Protocol):
    """`linear` in whole numbers: the weight is kept as bytes, and what it is multiplied by is made bytes row by row.

    for a row r of the weight or of x: s(r) = max |r| / 127, q(r) = round(r / s), ties to even;
    both are 0 if max |r| < 1e-30
    linear_int8(weight, bias)(x)[t, n] = Σ q(x[t]) q(weight[n]) · s(x[t]) · s(weight[n]) + bias[n];  exact sum, float32
    weight [N, M]; bias [N] or None; x [..., M]. A row of x that is not finite gives NaN. `unpacked` gives q · s.
    """

    def __call__(self, weight: Tensor, bias: Tensor | None, gated: bool = False) -> Product:
        """See the class."""
        ...


class Embedding(Protocol):
    """Rows of a table: out[t] = table[ids[t]] * scale.

    ids int64 [T]; table [rows, N] -> new [T, N]
    """

    def __call__(self, ids: Tensor, table: Tensor, scale: float = 1.0) -> Tensor:
        """See the class."""
        ...


class Moe(Protocol):
    """Gated MLPs of the chosen experts, weighted.

    out[t] = Σ_j weights[t, j] * down[e] · gated_act(gate_up[e] · x[t], act),  e = experts[t, j]
    x [T, W]; weights float32 [T, J]; experts int64 [T, J]; gate_up [E, 2N, W]; down [E, W, N] -> [T, W] like x
    """

    def __call__(self, x: Tensor, weights: Tensor, experts: Tensor, gate_up: Tensor, down: Tensor, act: str) -> Tensor:
        """See the class."""
        ...


class LogitsTail(Protocol):
    """Last touch on logits: y = float32(x) * scale;  y = softcap * tanh(y / softcap) if softcap.

    x [rows, vocab] -> float32 [rows, vocab]. May overwrite x.
    """

    def __call__(self, x: Tensor, scale: float = 1.0, softcap: float | None = None) -> Tensor:
        """See the class."""
        ...


class Blocks(Protocol):
    """Bind a run of decoder blocks once, compute it every step: an implementation may fuse what the blocks do.

    blocks(blocks, width)(x, fwd) = blocks[-1](… blocks[1](blocks[0](x, fwd), fwd) …, fwd)
    x [T, width]; fwd a `quire_models.Forward` -> [T, width], perhaps only valid until the next call. May overwrite x.
    """

    def __call__(self, blocks: Sequence[Callable[[Any, Any], Any]], width: int) -> Callable[[Tensor, Any], Tensor]:
        """See the class."""
        ...


ACTS = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "quick_gelu", "sigmoid", "tanh", "identity")
"""Names of activations: gelu exact, gelu_tanh its tanh form, relu2 relu squared, quick_gelu x · sigmoid(1.702 x)."""

TABLE: Mapping[str, type] = {
    "rms_norm": RmsNorm,
    "add_rms_norm": AddRmsNorm,
    "layer_norm": LayerNorm,
    "rotary": Rotary,
    "write_kv": WriteKv,
    "rotary_write_kv": RotaryWriteKv,
    "paged_attention": PagedAttention,
    "row_attention": RowAttention,
    "gated_act": GatedAct,
    "act": Act,
    "linear": Linear,
    "linear_many": LinearMany,
    "linear_int8": LinearInt8,
    "low_rank": LowRank,
    "embedding": Embedding,
    "moe": Moe,
    "logits_tail": LogitsTail,
    "mask_logits": MaskLogits,
    "argmax": Argmax,
    "draw": Draw,
    "logprobs": Logprobs,
    "blocks": Blocks,
}
"""Every op by name; `OpImpl.op` is one of these."""
