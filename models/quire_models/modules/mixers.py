"""Modules of the blocks and parts in `quire_models.parts.mixers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.mixers import MixerBlock, ParallelMixers
    from quire_models.step.forward_batch import ForwardBatch


class MixerResidualBlock(nn.Module):
    """The module that the part `parts.mixers.MixerBlock` builds."""

    def __init__(self, width: int, part: MixerBlock, builder: ModuleBuilder) -> None:
        super().__init__()
        self._scale = part.residual_scale
        self.mixer_in = part.norm.build(width, builder)
        self.mixer = part.mixer.build(width, builder)

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]."""
        return x + _scaled(self.mixer(self.mixer_in(x), fwd), self._scale)


class ParallelMixersModule(nn.Module):
    """The module that the part `parts.mixers.ParallelMixers` builds."""

    def __init__(self, width: int, part: ParallelMixers, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.attn = part.attn.build(width, builder)
        self.mixer = part.mixer.build(width, builder)

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]."""
        part = self.part
        seen = _scaled(self.attn(_scaled(x, part.attn_in_scale), fwd), part.attn_out_scale)
        return seen + _scaled(self.mixer(_scaled(x, part.mixer_in_scale), fwd), part.mixer_out_scale)


def _scaled(x: Tensor, scale: float) -> Tensor:
    return x if scale == 1.0 else x * scale
