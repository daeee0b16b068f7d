"""The module of xIELU, an activation with learnt numbers. This module is not a plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder

BETA, EPS = 0.5, -1e-6


class XieluModule(nn.Module):
    """up * x² + x / 2 above zero, down * (exp(x) - 1 - x) + x / 2 below; up and down are softplus of the numbers."""

    def __init__(self, builder: ModuleBuilder) -> None:
        super().__init__()
        self.alpha_p, self.alpha_n = builder.parameter(1), builder.parameter(1)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] -> the same shape."""
        up = nn.functional.softplus(self.alpha_p)
        down = BETA + nn.functional.softplus(self.alpha_n)
        return torch.where(x > 0, up * x * x, (torch.expm1(x.clamp(max=EPS)) - x) * down) + BETA * x
