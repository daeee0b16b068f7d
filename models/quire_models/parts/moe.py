"""Parts of mixtures of experts: the mixture, its experts, its router, and what is computed for every token beside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from quire_kernels.moe import ClampedSwiglu, Routing

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.decoder import Part


@dataclass(frozen=True)
class Expert:
    """One MLP of a mixture: down(act(gate(x)) * up(x)).

    intermediate_size: outputs of gate and of up (moe_intermediate_size). act: a name in `quire_kernels.ops.ACTS`, or
    `ClampedSwiglu`. gated: without a gate it is down(act(up(x))). bias: whether the matrices have biases.
    """

    intermediate_size: int
    act: str | ClampedSwiglu = "silu"
    gated: bool = True
    bias: bool = False

    @property
    def first_outputs(self) -> int:
        """Outputs of the first matrix: gate and up, or up alone."""
        return self.intermediate_size * (2 if self.gated else 1)


class ExpertRouterPart(Protocol):
    """Chooses the experts of each token by their logits. bias: whether the matrix that gives the logits has one."""

    @property
    def top_k(self) -> int:
        """Experts of a token."""
        ...

    @property
    def bias(self) -> bool: ...

    def build(self, experts: int, builder: ModuleBuilder) -> nn.Module:
        """A module logits [tokens, experts] -> (weights float32, chosen int64), both [tokens, top_k]."""
        ...


@dataclass(frozen=True)
class ExpertRouter:
    """Chooses and weights experts by softmax or sigmoid of the logits.

    routing: how it chooses (`quire_kernels.moe.Routing`). bias: of the matrix that gives the logits. corrected: a bias
    for each expert is added to the scores for the choice only (e_score_correction_bias of DeepSeek V3); its parameter
    is `mlp.routing.correction`, float32.
    """

    routing: Routing
    bias: bool = False
    corrected: bool = False

    @property
    def top_k(self) -> int:
        return self.routing.top_k

    def build(self, experts: int, builder: ModuleBuilder) -> nn.Module:
        """A module logits [tokens, experts] -> (weights, chosen)."""
        from quire_models.modules.moe import TopKRouting

        return TopKRouting(experts, self, builder)


@dataclass(frozen=True)
class SigmoidGated:
    """sigmoid(scale(x)) * part(x), where scale(x) is one number for each token, as for the shared expert of Qwen2-MoE.

    The matrix is named `scale`, the part `mlp`.
    """

    part: Part

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_models.modules.moe import SigmoidGatedModule

        return SigmoidGatedModule(width, self, builder)


@dataclass(frozen=True)
class Moe:
    """Mixture of experts: each token uses some of `experts` MLPs (num_experts), which the router chooses.

    router: gives logits, and chooses by them. shared: computed for every token and added, for example a `GatedMlp`.
    weighs_inputs: an expert's weight is a factor of its input instead of its output (Llama 4). held: the experts that
    this rank has, None = all (`quire_models.sharding`); the router knows all of them.
    """

    expert: Expert
    experts: int
    router: ExpertRouterPart
    shared: Part | None = None
    weighs_inputs: bool = False
    held: range | None = None

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_models.modules.moe import MoEModule

        return MoEModule(width, self, builder)


def softmax_router(top_k: int, renormalize: bool = True, scale: float = 1.0) -> ExpertRouter:
    """Weights are the softmax over all experts; if they are renormalized, that equals softmax over the chosen ones."""
    return ExpertRouter(Routing(top_k, "softmax", renormalize, scale))
