"""Blocks whose tokens are mixed by something besides attention: a state mixer, or several mixers in parallel.

A mixer is any part (x, forward) -> [tokens, width]; what it keeps for each seq are its `kv_shape` and `state_shape`.
A state mixer takes the place of the attention in `Block`, `ParallelBlock` and `PostNormBlock`, or of the only mixer in
`MixerBlock`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire_models.parts import state
from quire_models.parts.decoder import KvShape, Part
from quire_models.parts.state import StateShape

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder


@dataclass(frozen=True)
class MixerBlock:
    """x += scale * mixer(norm(x)): the only branch is a mixer, attention or an MLP (Mamba-2, Nemotron-H)."""

    mixer: Part
    norm: Part
    residual_scale: float = 1.0

    @property
    def kv_shape(self) -> KvShape:
        return state.kv_shape(self.mixer)

    @property
    def state_shape(self) -> StateShape | None:
        """What the mixer keeps for each seq."""
        return state.state_shape(self.mixer)

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, forward) -> [tokens, width], whose mixer is named `mixer` and whose norm `mixer_in`."""
        from quire_models.modules.mixers import MixerResidualBlock

        return MixerResidualBlock(width, self, builder)


@dataclass(frozen=True)
class ParallelMixers:
    """attn_out_scale * attn(attn_in_scale * x) + mixer_out_scale * mixer(mixer_in_scale * x), as attention of a block.

    Of attention and mixer, one keeps keys and values and the other state (Falcon-H1), so that each finds its own.
    Raises ValueError if both keep the same kind.
    """

    attn: Part
    mixer: Part
    attn_in_scale: float = 1.0
    attn_out_scale: float = 1.0
    mixer_in_scale: float = 1.0
    mixer_out_scale: float = 1.0

    def __post_init__(self) -> None:
        parts = (self.attn, self.mixer)
        if all(any(state.kv_shape(part)) for part in parts) or all(map(state.state_shape, parts)):
            raise ValueError("attention and mixer of one block keep the same kind; at most one can")

    @property
    def kv_shape(self) -> KvShape:
        """That of the part which stores keys and values."""
        own = state.kv_shape(self.attn)
        return own if any(own) else state.kv_shape(self.mixer)

    @property
    def state_shape(self) -> StateShape | None:
        """That of the part which keeps state."""
        return state.state_shape(self.mixer) or state.state_shape(self.attn)

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_models.modules.mixers import ParallelMixersModule

        return ParallelMixersModule(width, self, builder)
