"""The op table: the meaning of each op, and the signature that all its implementations have.

An implementation may be plain torch, C++ or a GPU kernel; `reference.py` is the executable definition.
Shapes: T tokens of one step, H query heads, K key-value heads (H is a multiple of K), D head dimension,
R rows (one chunk of one seq each), P pages of the longest row. Ops depend neither on models nor on scheduling.

"May overwrite x": the caller never reads x again, so an implementation can work in place.
A token's result may depend on other tokens of the step only through the order of summation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from quire_kernels.attention import LinearHeads, PagedAttention, ReadKv, RowAttentionOp
from quire_kernels.low_rank import LowRank
from quire_kernels.moe import MoeOp, RouteOp
from quire_kernels.quantized import QuantizedMatrix
from quire_kernels.sampling import Argmax, LogprobsOp, MaskLogits, SampleOp
from quire_kernels.state.ops import CausalConv, GatedDelta, GatedRmsNorm, SelectiveScan, SsdScan


@dataclass(slots=True)
class AttentionMetadata:
    """Which tokens of the step belong to which seq, and which pages hold their keys and values.

    Row r is the tokens query_starts[r] … query_starts[r+1]-1: the last tokens of a seq whose first contexts[r]
    positions are in the pool. Position p is in page pages[r, p // page_size], at offset p % page_size.

    query_starts: int32 [R + 1]. contexts: int32 [R]. pages: int32 [R, P]; entries beyond a row's context are arbitrary.
    lens_host, contexts_host: number of tokens and context length of each row, in CPU memory.
    step_cache: data that an implementation derives from a step and reuses in the following blocks.
    visible_ends: int32 [T], for each token the end (exclusive) of the positions that it attends to: after its own
    position and within its row's context. None: every token attends up to itself, as in nearly every step.
    visible_ends_host: the same in CPU memory.
    """

    query_starts: Tensor
    contexts: Tensor
    pages: Tensor
    lens_host: np.ndarray[Any, np.dtype[np.int32]]
    contexts_host: np.ndarray[Any, np.dtype[np.int32]]
    max_query: int
    max_context: int
    step_cache: dict[Any, Any] = field(default_factory=dict)
    visible_ends: Tensor | None = None
    visible_ends_host: np.ndarray[Any, np.dtype[np.int32]] | None = None

    @classmethod
    def unpaged(
        cls, lens: Sequence[int] | np.ndarray[Any, np.dtype[np.integer[Any]]], device: torch.device
    ) -> AttentionMetadata:
        """Rows of `lens` tokens each, without pages: for `row_attention` outside a step, as in towers."""
        host = np.asarray(lens, np.int32)
        starts = torch.from_numpy(np.cumsum([0, *host], dtype=np.int32)).to(device)
        pages = torch.empty(len(host), 0, dtype=torch.int32, device=device)
        most = int(host.max(initial=0))
        return cls(starts, torch.from_numpy(host).to(device), pages, host, host, most, most)


class RMSNormOp(Protocol):
    """Normalize the last dimension by its root mean square (arXiv 1910.07467).

    out = x / sqrt(mean(x²) + eps) * weight           in float32, rounded once at the end
    x [..., N]; weight [N], may be float32 and already includes any offset -> [..., N], data type of x
    """

    def __call__(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...


class AddRmsNorm(Protocol):
    """Add to the residual stream and normalize the sum.

    residual = residual + x;  normed = rms_norm(residual, weight, eps)
    x, residual [T, N]; weight [N] -> (normed, residual), both [T, N]. May overwrite x and residual.
    """

    def __call__(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]: ...


class LayerNormOp(Protocol):
    """Normalize the last dimension to mean 0 and variance 1 (arXiv 1607.06450).

    out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias
    x [..., N]; weight, bias [N] or None -> [..., N], data type of x
    """

    def __call__(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor: ...


class Rotary(Protocol):
    """Rotate pairs of dimensions of every head by the token's angles (RoPE, arXiv 2104.09864).

    a, b = x[..., :N], x[..., N:2N]  (interleaved: x[..., 0:2N:2], x[..., 1:2N:2])
    a, b = a cos - b sin, b cos + a sin;  dimensions from 2N on are unchanged
    q [T, H, D]; k [T, K, D]; cos, sin float32 [T, N], 2N ≤ D -> (q, k). May overwrite q and k.
    """

    def __call__(
        self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
    ) -> tuple[Tensor, Tensor]: ...


class WriteKv(Protocol):
    """Store the keys and values of the step's tokens in their slots of the KV cache.

    k_pool.view(-1, K, D)[slot_mapping[t]] = k[t];  v likewise, unless it is None;  no slot occurs twice
    k [T, K, D]; v [T, K, V] (any strides between tokens and heads); k_pool [pages, page_size, K, D]; v_pool likewise;
    slot_mapping int64 [T]
    """

    def __call__(self, k: Tensor, v: Tensor | None, k_pool: Tensor, v_pool: Tensor, slot_mapping: Tensor) -> None: ...


class RotaryWriteKv(Protocol):
    """`rotary`, then `write_kv` of the rotated keys; returns the rotated queries.

    q, k = rotary(q, k, cos, sin, interleaved);  write_kv(k, v, k_pool, v_pool, slot_mapping);  out = q
    shapes as in the two ops -> q [T, H, D]. May overwrite q and k.
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
        slot_mapping: Tensor,
        interleaved: bool = False,
    ) -> Tensor: ...


class GatedAct(Protocol):
    """Activation of a gated MLP: out = act(gate) * up, where gate, up = halves of the last dimension.

    gate_up [..., 2N]; act one of ACTS -> [..., N]
    """

    def __call__(self, gate_up: Tensor, act: str) -> Tensor: ...


class Act(Protocol):
    """Elementwise activation: out = act(x).

    x [..., N]; act one of ACTS -> [..., N]. May overwrite x.
    """

    def __call__(self, x: Tensor, act: str) -> Tensor: ...


class BoundLinear(Protocol):
    """A weight matrix bound by a linear op, ready to be applied.

    bound(x) = x weightᵀ + bias;  x [..., M] -> [..., N], data type of x, or float32 on request (then not rounded first,
    where that costs nothing). Optional attributes of an implementation:
    `unpacked(rows)`: rows of the weight (int64 ids, None = all); then the caller need not keep the original weight.
    `argmax(x)`, x [rows, M]: for each row the result of the op `argmax` on bound(x, float32=True), as a list.
    `element_bytes`: bytes read for a weight element, if not those of its type.
    `batch_invariant`: no bit of a row of the result depends on the other rows; without it, that is not known.
    """

    def __call__(self, x: Tensor, float32: bool = False) -> Tensor: ...


class MatrixPlace(NamedTuple):
    """The matrix of a model that a packed one is for. shape: [outputs, inputs]. bias: in the data type."""

    shape: tuple[int, int]
    bias: Tensor | None
    dtype: torch.dtype
    gated: bool


class LinearOp(Protocol):
    """Bind a matrix once and apply it often: an implementation may pack the weight when it binds it.

    linear(weight, bias)(x) = x weightᵀ + bias
    weight [N, M]; bias [N] or None. Must be bound again whenever the weight changes. gated: as a rule only `gated_act`
    reads the outputs (a packing hint that does not change the result).
    Optional attribute `takes_parts`: whether `weight` may also be a sequence of matrices that have its rows.
    """

    def __call__(self, weight: Tensor, bias: Tensor | None, gated: bool = False) -> BoundLinear: ...


class LinearBatched(LinearOp, Protocol):
    """`linear` for matrices that are applied to many rows at once, as in encoders and towers: the same meaning and
    signature, and an implementation may use more memory for a weight to be faster."""


class LinearInt8(Protocol):
    """`linear` in int8: the weight is quantized when it is bound, the input row by row when it is multiplied.

    for a row r of the weight or of x: s(r) = max |r| / 127, q(r) = round(r / s), ties to even;
    both are 0 if max |r| < 1e-30
    linear_int8(weight, bias)(x)[t, n] = Σ q(x[t]) q(weight[n]) · s(x[t]) · s(weight[n]) + bias[n];  exact sum, float32
    weight [N, M]; bias [N] or None; x [..., M]. A row of x that is not finite gives NaN. `unpacked` returns q · s.
    """

    def __call__(self, weight: Tensor, bias: Tensor | None, gated: bool = False) -> BoundLinear: ...


class LinearQuantized(Protocol):
    """`linear` with a weight that is already in few bits, see `quire_kernels.quantized.QuantizedMatrix`.

    activation_bits 16: bound(x) = x weightᵀ + bias in float32, with the dequantized weight.
    activation_bits 8, if the weight's values are integers: x is rounded first. Its columns, in the weight's order, are
    in groups r of 32; s(r) = max |r| / 127, q(r) = round(r / s), ties to even, both 0 if max |r| < 1e-30; x becomes
    s · q. A row of x that is not finite gives NaN.
    matrix [N, M], or `QuantizedRows` for an op with a true attribute `packs_rows`, which reads some rows at a time;
    bias [N] or None; dtype: of x [..., M] and of what `unpacked` returns. A result does not depend on the other rows
    of x. Scales and offsets may be stored as float16 times a power of two an output, unless activation_bits is 16.
    """

    def __call__(
        self,
        matrix: QuantizedMatrix,
        bias: Tensor | None,
        dtype: torch.dtype,
        gated: bool = False,
        activation_bits: int = 8,
    ) -> BoundLinear: ...


class EmbeddingOp(Protocol):
    """Look up rows of a table: out[t] = table[ids[t]] * scale.

    ids int64 [T]; table [rows, N] -> new tensor [T, N]
    """

    def __call__(self, ids: Tensor, table: Tensor, scale: float = 1.0) -> Tensor: ...


class ScaleLogits(Protocol):
    """Scale and soft-cap logits: y = float32(x) * scale;  y = softcap * tanh(y / softcap) if softcap.

    x [rows, vocab] -> float32 [rows, vocab]. May overwrite x.
    """

    def __call__(self, x: Tensor, scale: float = 1.0, softcap: float | None = None) -> Tensor: ...


class FusedBlocks(Protocol):
    """Bind a run of decoder blocks once and compute it every step: an implementation may fuse the blocks' operations.

    fused_blocks(blocks, width)(x, fwd) = blocks[-1](… blocks[1](blocks[0](x, fwd), fwd) …, fwd)
    x [T, width]; fwd a `quire_models.ForwardBatch` -> [T, width], which the next call may overwrite. May overwrite x.
    """

    def __call__(self, blocks: Sequence[Callable[[Any, Any], Any]], width: int) -> Callable[[Tensor, Any], Tensor]: ...


ACTS = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "quick_gelu", "sigmoid", "tanh", "identity")
"""Activation names. gelu: exact; gelu_tanh: tanh approximation; relu2: relu squared; quick_gelu: x · sigmoid(1.702
x).
"""

TABLE: Mapping[str, type] = {
    "rms_norm": RMSNormOp,
    "add_rms_norm": AddRmsNorm,
    "layer_norm": LayerNormOp,
    "rotary": Rotary,
    "write_kv": WriteKv,
    "rotary_write_kv": RotaryWriteKv,
    "paged_attention": PagedAttention,
    "read_kv": ReadKv,
    "row_attention": RowAttentionOp,
    "gated_act": GatedAct,
    "act": Act,
    "linear": LinearOp,
    "linear_batched": LinearBatched,
    "linear_heads": LinearHeads,
    "linear_int8": LinearInt8,
    "linear_quantized": LinearQuantized,
    "low_rank": LowRank,
    "embedding": EmbeddingOp,
    "route": RouteOp,
    "moe": MoeOp,
    "scale_logits": ScaleLogits,
    "mask_logits": MaskLogits,
    "argmax": Argmax,
    "sample": SampleOp,
    "logprobs": LogprobsOp,
    "causal_conv": CausalConv,
    "gated_delta": GatedDelta,
    "ssd_scan": SsdScan,
    "selective_scan": SelectiveScan,
    "gated_rms_norm": GatedRmsNorm,
    "fused_blocks": FusedBlocks,
}
"""Every op by name; `OpImpl.op` is one of these names."""
