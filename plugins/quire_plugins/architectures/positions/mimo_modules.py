"""The module of MiMo's values."""

from __future__ import annotations

from torch import Tensor, nn


class ScalingModule(nn.Module):
    """The module that the part `Scaling` builds."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] -> the same shape."""
        return x * self._factor
