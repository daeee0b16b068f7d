"""Modules of mixtures of experts: the mixture, the choice of experts, and shared experts behind a gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from quire_models.modules.experts import ExpertInputs, Experts
from quire_models.modules.projection import apply_adapters

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.moe import ExpertRouter, Moe, SigmoidGated
    from quire_models.step.forward_batch import ForwardBatch


class MoEModule(nn.Module):
    """The module that the part `parts.moe.Moe` builds. routing: from the router's logits to weights and experts.

    reduce: adds up the outputs of several ranks (`quire_models.sharding`), and with them those of what is computed for
    every token, if they are partial too.
    """

    def __init__(self, width: int, part: Moe, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        exact = builder.unquantized()  # quantization errors in the router select other experts
        self.router = exact.projection(width, part.experts, part.router.bias)
        self.routing = part.router.build(part.experts, builder)
        self.experts = Experts(width, part, builder)
        self.shared = None if part.shared is None else part.shared.build(width, builder)
        self.reduce: Callable[[Any], Any] | None = None
        self.shared_is_partial = False

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]."""
        weights, chosen = self.routing(self.router(x, fwd))
        inputs = ExpertInputs(x, weights, chosen)
        y = apply_adapters(self.experts, self.experts(inputs), inputs, fwd.adapters)
        if self.reduce is not None and not self.shared_is_partial:
            y = self.reduce(y)
        if self.shared is not None:
            y = y + self.shared(x, fwd)
        return self.reduce(y) if self.reduce is not None and self.shared_is_partial else y


class TopKRouting(nn.Module):
    """The module that the part `parts.moe.ExpertRouter` builds."""

    def __init__(self, experts: int, part: ExpertRouter, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self._ops = builder.ops
        self.correction: nn.Parameter | None = None
        if part.corrected:
            memory = torch.empty(experts, dtype=torch.float32, device=builder.device)
            self.correction = nn.Parameter(memory, requires_grad=False)

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [tokens, experts] -> (weights, chosen), both [tokens, top_k]."""
        return self._ops.route(logits, self.part.routing, self.correction)


class SigmoidGatedModule(nn.Module):
    """The module that the part `parts.moe.SigmoidGated` builds."""

    def __init__(self, width: int, part: SigmoidGated, builder: ModuleBuilder) -> None:
        super().__init__()
        self._ops = builder.ops
        self.scale = builder.unquantized().projection(width, 1)
        self.mlp = part.part.build(width, builder)

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]."""
        return self.mlp(x, fwd) * self._ops.act(self.scale(x, fwd), "sigmoid")
