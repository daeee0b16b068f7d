"""The ops of blocks that keep a state of fixed size for each seq. `quire_kernels.ops` explains rows.

Every op takes the tokens of all rows, state tensors [slots, …] of one block, and `slots`, int64 [R]: the slot of each
row. On entry a slot holds the state after the row's earlier tokens, zeros at the start of a seq; the op advances it in
place. Rows of a step have distinct slots. Only `query_starts` and `lens_host` of `rows` are used.
However a seq is cut into rows of several steps, results and states are equal up to float32 rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from quire_kernels.ops import AttentionMetadata


class CausalConv(Protocol):
    """Causal convolution of each channel by itself, over the last J tokens of its seq.

    out[t, c] = act(Σ_j weight[j, c] * x[t - J + 1 + j, c] + bias[c]);  sums in float32
    x [T, C] (any stride between tokens); weight float32 [J, C], J ≥ 2; bias float32 [C] or None; state [slots, J - 1,
    C] in the data type of x, the row's last inputs, oldest first; act one of `quire_kernels.ops.ACTS` -> [T, C]
    """

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        state: Tensor,
        slots: Tensor,
        rows: AttentionMetadata,
        act: str = "identity",
    ) -> Tensor: ...


class GatedDelta(Protocol):
    """Gated delta rule (arXiv 2412.06464), for each of H heads with a state S [D, V] in float32.

    q = q / |q| / √D, k = k / |k| with |x| = √(Σ x² + 1e-6);  value head h uses query and key head h // (H / K)
    d = exp(rate[h] * softplus(decay[t, h] + bias[h]));  w = factor * sigmoid(weight[t, h])
    S = d S;  S += k ⊗ w (v - Sᵀ k);  out = Sᵀ q
    qkv [T, 2 K D + H V]: queries, keys, values; decay [T, H], or [T, H D] for decays by channel of the keys, of which d
    is a vector (Kimi Delta Attention, arXiv 2510.26692); weight [T, H]; rate float32 [H], at most 0; bias float32 of
    the width of decay; state float32 [slots, H, D, V] -> [T, H, V], data type of qkv
    """

    def __call__(
        self,
        qkv: Tensor,
        decay: Tensor,
        weight: Tensor,
        rate: Tensor,
        bias: Tensor,
        state: Tensor,
        slots: Tensor,
        rows: AttentionMetadata,
        dims: tuple[int, int],
        factor: float = 1.0,
    ) -> Tensor: ...


class SsdScan(Protocol):
    """Scan of Mamba-2 (state space duality, arXiv 2405.21060), for each of H heads with a state S [N, P] in float32.

    dt = clamp(softplus(step[t, h] + bias[h]), *limits);  S = exp(rate[h] * dt) S + B ⊗ (dt x);  out = Sᵀ C + skip[h] x
    head h uses B and C of group h // (H / G)
    xbc [T, H P + 2 G N]: x of the heads, B and C of the groups; step [T, H]; rate, bias, skip float32 [H]; state
    float32 [slots, H, N, P]; dims (N, P) -> [T, H, P], data type of xbc
    """

    def __call__(
        self,
        xbc: Tensor,
        step: Tensor,
        rate: Tensor,
        bias: Tensor,
        skip: Tensor,
        state: Tensor,
        slots: Tensor,
        rows: AttentionMetadata,
        dims: tuple[int, int],
        limits: tuple[float, float] = (0.0, float("inf")),
    ) -> Tensor: ...


class SelectiveScan(Protocol):
    """Selective scan of Mamba (arXiv 2312.00752), for each of C channels with a state of N numbers in float32.

    dt = softplus(step[t, c]);  S[n, c] = exp(rate[n, c] * dt) S[n, c] + dt x[t, c] B[t, n]
    out[t, c] = Σ_n S[n, c] C[t, n] + skip[c] x[t, c]
    x, step [T, C]; b, c [T, N]; rate float32 [N, C]; skip float32 [C]; state float32 [slots, N, C] -> [T, C], data type
    of x. May overwrite x.
    """

    def __call__(
        self,
        x: Tensor,
        step: Tensor,
        b: Tensor,
        c: Tensor,
        rate: Tensor,
        skip: Tensor,
        state: Tensor,
        slots: Tensor,
        rows: AttentionMetadata,
    ) -> Tensor: ...


class GatedRmsNorm(Protocol):
    """RMS norm with a gate: out = rms_norm(x) * weight * act(gate), or rms_norm(x * act(gate)) * weight if gate_first.

    x, gate [T, parts, N], each part normalized by itself; weight float32 [N], or [parts, N] -> [T, parts, N], data type
    of x; in float32, rounded once at the end
    """

    def __call__(
        self, x: Tensor, gate: Tensor, weight: Tensor, eps: float, act: str = "silu", gate_first: bool = False
    ) -> Tensor: ...
