"""The ops of mixtures of experts: which experts a token uses, and what they make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from quire_kernels.ops import BoundLinear

RouterScores = Literal["softmax", "sigmoid", "sparsemixer"]


@dataclass(frozen=True)
class ExpertGroups:
    """Limits the choice of experts to some groups of neighboring ones (arXiv 2405.04434, 2412.19437).

    count: number of groups of equal size. chosen: groups that a token may use. best: a group counts as much as its
    `best` highest scores together.
    """

    count: int
    chosen: int
    best: int = 2


@dataclass(frozen=True)
class Routing:
    """How experts are chosen and weighted, by the logits of a router.

    top_k: experts per token. scores: softmax or sigmoid of the logits; sparsemixer is the choice of arXiv 2409.12136
    when it does not sample: the experts are chosen one after another, and the weight of each is its softmax among the
    experts that are left and whose logits lie within 2 · jitter of the largest. renormalize: the weights of the chosen
    experts sum to 1, but their sum counts as at least `least_sum`. scale: factor of the weights after that.
    """

    top_k: int
    scores: RouterScores = "softmax"
    renormalize: bool = False
    scale: float = 1.0
    groups: ExpertGroups | None = None
    least_sum: float = 1e-20
    jitter: float = 0.0


@dataclass(frozen=True)
class ClampedSwiglu:
    """Gated activation of GPT-OSS: a sigmoid(alpha a) (b + 1), where a = min(gate, limit), b = clamp(up, ±limit)."""

    alpha: float
    limit: float


@dataclass(frozen=True)
class ExpertMlp:
    """What an expert computes between its two matrices.

    act: a name of `quire_kernels.ops.ACTS`, or a gated activation. gated: the first matrix gives gate and up, whose
    product act(gate) · up is the second one's input; else act(up) is. weighs_inputs: an expert's weight is a factor of
    its input, not of its output. first: number of the first expert that is bound, if not all are; others
    add nothing.
    """

    act: str | ClampedSwiglu = "silu"
    gated: bool = True
    weighs_inputs: bool = False
    first: int | None = None


class RouteOp(Protocol):
    """Choose the experts of each token.

    p = softmax(logits) or sigmoid(logits), in float32;  chosen[t] = the top_k largest of p[t] + correction, without
    the groups that are not chosen;  weights[t, j] = p[t, chosen[t, j]], normalized and scaled as `Routing` says
    logits [T, E], any data type; correction float32 [E] or None -> (weights float32 [T, J], chosen int64 [T, J]).
    A token's experts are in descending order of the scores that chose them, equal scores in any order.
    """

    def __call__(self, logits: Tensor, routing: Routing, correction: Tensor | None = None) -> tuple[Tensor, Tensor]: ...


class BoundMoe(Protocol):
    """The experts of one mixture, bound by a `MoeOp`."""

    def __call__(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """x [T, W]; weights float32 and chosen int64 [T, J] -> [T, W], data type of x."""
        ...

    def product(self, second: bool, expert: int, x: Tensor) -> Tensor:
        """x [rows, inputs] times the first or the second matrix of an expert, with its bias: [rows, outputs]."""
        ...

    def activate(self, products: Tensor) -> Tensor:
        """What the second matrix is applied to, [rows, N], by the products of the first, [rows, 2N or N]."""
        ...


class MoeOp(Protocol):
    """Bind the experts of a mixture; an implementation may pack their matrices.

    moe(up, down, mlp)(x, weights, chosen)[t] = Σ_j weights[t, j] · (down[e] h + down_bias[e]),  e = chosen[t, j]
    h = act(gate) · up or act(up) of  up[e] x[t] + up_bias[e]; mlp.weighs_inputs: the weight is a factor of x[t] instead
    up [E, 2N or N, W]; down [E, W, N]; biases [E, outputs] or None. Instead of stacked matrices a list of E bound
    matrices, with their biases, for example quantized ones.
    Optional attribute of what is bound: `keeps_copy`, true if the stacked matrices need not be kept.
    """

    def __call__(
        self,
        up: Tensor | Sequence[BoundLinear],
        down: Tensor | Sequence[BoundLinear],
        mlp: ExpertMlp,
        up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
    ) -> BoundMoe: ...
