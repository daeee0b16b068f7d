"""Rotary angles: one function per scaling, and the cosines and sines of one step.

`quire_models.parts.rope_config` explains the lengths that two of the scalings depend on.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quire_models.parts.rope_config import (
    DynamicNtk,
    LinearScaling,
    Llama3,
    LongRope,
    Proportional,
    Rope,
    Scaling,
    Yarn,
)

if TYPE_CHECKING:
    from quire_models.step.forward_batch import ForwardBatch


FIRST_POSITIONS = 4096
"""Number of positions whose angles are computed at first; a longer seq doubles the table."""


class RotaryAngles:
    """Cosines and sines of a step's tokens, computed once per step and shared by all blocks."""

    def __init__(self, rope: Rope, device: torch.device) -> None:
        self.rope = rope
        self._table = frequencies(rope, long=False).to(device)
        scaling = rope.scaling
        self._factor = attention_factor(scaling)
        self._axes = axes_of_pairs(rope).to(device)
        self._all: tuple[Tensor, Tensor] | None = None
        self._long = frequencies(rope, long=True).to(device) if isinstance(scaling, LongRope) else None

    def for_step(self, fwd: ForwardBatch) -> tuple[Tensor, Tensor]:
        """(cos, sin), both float32 [tokens, dim / 2]."""
        if self not in fwd.step_cache:
            fwd.step_cache[self] = self._cos_sin(self._positions(fwd), self._frequencies(fwd))
        found: tuple[Tensor, Tensor] = fwd.step_cache[self]
        return found

    def for_positions(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(cos, sin) for positions int64 [axes, tokens], if the scaling does not depend on the length."""
        return self._cos_sin(self._by_pair(positions), self._table)

    def table(self, fwd: ForwardBatch) -> tuple[Tensor, Tensor] | None:
        """(cos, sin) of positions 0, 1, … , covering at least the step: float32 [positions, dim / 2].

        None if a token's angles depend on more than its position.
        """
        if fwd.rope_positions is not None or isinstance(self.rope.scaling, LongRope | DynamicNtk):
            return None
        if self._all is None or len(self._all[0]) < fwd.rows.max_context:
            length = max(FIRST_POSITIONS, 2 * fwd.rows.max_context)
            self._all = self._cos_sin(torch.arange(length, device=self._table.device)[:, None], self._table)
        return self._all

    def _positions(self, fwd: ForwardBatch) -> Tensor:
        """int64 [tokens, 1], or [tokens, dim / 2] where pairs of dimensions rotate by different axes."""
        if fwd.rope_positions is None:
            return fwd.positions[:, None]
        return self._by_pair(fwd.rope_positions)

    def _by_pair(self, positions: Tensor) -> Tensor:
        """positions [axes, tokens] -> [tokens, 1 or dim / 2]."""
        return positions.T if len(positions) == 1 else positions.index_select(0, self._axes).T.contiguous()

    def _cos_sin(self, positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions.float() * frequencies
        cos, sin = angles.cos(), angles.sin()
        return (cos, sin) if self._factor == 1.0 else (cos * self._factor, sin * self._factor)

    def _frequencies(self, fwd: ForwardBatch) -> Tensor:
        """[dim / 2], or [tokens, dim / 2] where they depend on each token's length."""
        scaling = self.rope.scaling
        if isinstance(scaling, LongRope):
            assert self._long is not None
            return torch.where(fwd.lengths[:, None] > scaling.original_len, self._long, self._table)
        if isinstance(scaling, DynamicNtk):
            return dynamic_frequencies(self.rope, scaling, fwd.lengths)
        return self._table


def frequencies(rope: Rope, long: bool = False) -> Tensor:
    """Angle per position of each pair of dimensions, float32 [dim / 2]; `long`: for seqs above the original length."""
    if rope.axial_turns:
        series = plain_frequencies(rope.dim, rope.theta)
        return torch.cat([series[axis :: rope.axes] for axis in range(rope.axes)])
    if rope.axial:
        return torch.cat([plain_frequencies(2 * pairs, rope.theta) for pairs in rope.sections])
    plain = plain_frequencies(rope.dim, rope.theta)
    scaling = rope.scaling
    if isinstance(scaling, Proportional):
        return torch.where(torch.arange(rope.dim // 2) < scaling.rotated, plain, 0.0)
    if isinstance(scaling, LinearScaling):
        return plain / scaling.factor
    if isinstance(scaling, Llama3):
        return llama3_frequencies(plain, scaling)
    if isinstance(scaling, Yarn):
        return yarn_frequencies(rope, scaling)
    if isinstance(scaling, LongRope):
        return longrope_frequencies(rope, scaling, long)
    return plain


def axes_of_pairs(rope: Rope) -> Tensor:
    """The position axis of each pair of dimensions: int64 [dim / 2]."""
    if rope.mixed:
        found = torch.zeros(rope.dim // 2, dtype=torch.int64)
        for axis in range(1, rope.axes):
            found[axis : rope.axes * rope.sections[axis] : rope.axes] = axis
        return found
    sections = rope.sections or (rope.dim // 2,)
    return torch.tensor([axis for axis, count in enumerate(sections) for _ in range(count)])


def attention_factor(scaling: Scaling | None) -> float:
    """Factor of cos and sin (YaRN, LongRoPE)."""
    if not isinstance(scaling, Yarn | LongRope):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if isinstance(scaling, LongRope):
        if scaling.factor <= 1:
            return 1.0
        return math.sqrt(1 + math.log(scaling.factor) / math.log(scaling.original_len))
    if scaling.mscale and scaling.mscale_all_dim:
        return _yarn_temperature(scaling.factor, scaling.mscale) / _yarn_temperature(
            scaling.factor, scaling.mscale_all_dim
        )
    return _yarn_temperature(scaling.factor, 1.0)


def plain_frequencies(dim: int, theta: float) -> Tensor:
    """theta ** (-2i / dim)."""
    return 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim)


def llama3_frequencies(plain: Tensor, scaling: Llama3) -> Tensor:
    """Long wavelengths divided by the factor, short ones kept, a linear blend between the two bounds."""
    wavelengths = 2 * math.pi / plain
    longest_kept = scaling.original_len / scaling.high_freq_factor
    shortest_scaled = scaling.original_len / scaling.low_freq_factor
    kept = (scaling.original_len / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blend = (1 - kept) * plain / scaling.factor + kept * plain
    scaled = torch.where(wavelengths > shortest_scaled, plain / scaling.factor, blend)
    return torch.where(wavelengths < longest_kept, plain, scaled)


def yarn_frequencies(rope: Rope, scaling: Yarn) -> Tensor:
    """Dimensions with more than beta_fast rotations over the original length are kept, below beta_slow they are
    scaled.
    """
    plain = plain_frequencies(rope.dim, rope.theta)
    low = _dimension_rotating(scaling.beta_fast, rope, scaling.original_len)
    high = _dimension_rotating(scaling.beta_slow, rope, scaling.original_len)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp
    scaled = ((torch.arange(rope.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return plain / scaling.factor * scaled + plain * (1 - scaled)


def _dimension_rotating(rotations: float, rope: Rope, length: int) -> float:
    """The (fractional) pair of dimensions that rotates `rotations` times over `length` positions."""
    return rope.dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))


def _yarn_temperature(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def longrope_frequencies(rope: Rope, scaling: LongRope, long: bool) -> Tensor:
    """One divisor per pair of dimensions."""
    factors = torch.tensor(scaling.long_factor if long else scaling.short_factor, dtype=torch.float32)
    return 1.0 / (factors * rope.theta ** (torch.arange(0, rope.dim, 2, dtype=torch.int64).float() / rope.dim))


def dynamic_frequencies(rope: Rope, scaling: DynamicNtk, lengths: Tensor) -> Tensor:
    """[tokens, dim / 2]: the base grows with a token's length above `max_len`."""
    stretch = scaling.factor * lengths.clamp(min=scaling.max_len).double() / scaling.max_len - (scaling.factor - 1)
    base = rope.theta * stretch ** (rope.dim / (rope.dim - 2))
    exponents = torch.arange(0, rope.dim, 2, device=lengths.device).double() / rope.dim
    return (1.0 / base[:, None] ** exponents).float()
