"""Search for the scales of integer codes: less squared error than scales that span the largest value.

With given codes the best scale (and offset) of a group is a least-squares fit, and with a given scale the best codes
are the nearest ones. Both are alternated from several starting scales that clip the largest values more or less, and
the fit with the least squared error is kept: the alternation of Lloyd's quantizer (IEEE Trans. Inf. Theory 28, 1982)
from the clipping factors of OMSE (arXiv 1902.06822). No data is needed; with data, inputs can be weighted.

C++ does the same on CPUs, ten times as fast, except for weighted inputs and integer zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire_kernels.cpu.build import BuildError
from quire_kernels.cpu.implementations import compiled
from quire_kernels.cpu.isa import available
from quire_kernels.cpu.library import Library
from quire_kernels.cpu.scale_search import MAX_GROUP, STORED, search_scales
from quire_kernels.int8 import MIN_ABS
from quire_kernels.quantized import MIN_GROUP, QuantizedMatrix
from quire_kernels.threads import for_each

CHUNK = 1 << 17
"""Elements that are searched at a time: their buffers fit into a CPU's caches."""

SYMMETRIC_CLIPPING = (1.14, 1.06, 1.0, 0.94, 0.88, 0.82, 0.76, 0.7)
"""Starting scales with codes around zero, relative to the one that gives the largest value the lowest code."""

ASYMMETRIC_CLIPPING = (1.0, 0.95, 0.9, 0.85, 0.8, 0.74)
"""Starting scales with an offset, relative to the one whose codes span all values."""


@dataclass(frozen=True)
class CodeGrid:
    """The numbers that the weights of a group may become.

    bits: of a code. group_size: neighbouring inputs that share a scale; it divides the inputs. asymmetric: with an
    offset for each group. conventional: as file formats have them: scales are positive, and an offset is a scale times
    an integer that a code can have. stored: dtype of scales and offsets. search: False spans all values of a group,
    which is rounding to nearest.
    """

    bits: int
    group_size: int
    asymmetric: bool = False
    conventional: bool = False
    stored: torch.dtype = torch.float32
    search: bool = True


def group_size_for(inputs: int, wanted: int) -> int:
    """The largest multiple of 16 that divides `inputs` and is at most `wanted`; all inputs if there is none."""
    sizes = range(wanted - wanted % MIN_GROUP, 0, -MIN_GROUP)
    return next((size for size in sizes if inputs % size == 0), inputs)


def quantize(weight: Tensor, grid: CodeGrid, importance: Tensor | None = None) -> QuantizedMatrix:
    """A matrix [outputs, inputs] on a grid; scales and offsets have been rounded to `grid.stored`.

    importance: float32 [inputs], factors of the squared errors, all positive.
    The result does not depend on the number of threads. Raises ValueError if a weight is not finite.
    """
    library = compiled_search(weight, grid) if importance is None else None
    if library is None:
        return quantize_in_torch(weight, grid, importance)
    clippings = ASYMMETRIC_CLIPPING if grid.asymmetric else SYMMETRIC_CLIPPING
    return search_scales(
        *(library, weight, grid.group_size, grid.bits, clippings),
        has_offsets=grid.asymmetric,
        positive=grid.conventional,
        stored=grid.stored,
    )


def compiled_search(weight: Tensor, grid: CodeGrid) -> Library | None:
    """The library whose search can take this matrix; None if it must be done in torch."""
    integer_zeros = grid.asymmetric and grid.conventional
    if weight.device.type != "cpu" or not available() or not grid.search or integer_zeros:
        return None
    if grid.group_size > MAX_GROUP or grid.stored not in STORED:
        return None
    try:
        return compiled()
    except BuildError:
        return None


def quantize_in_torch(weight: Tensor, grid: CodeGrid, importance: Tensor | None = None) -> QuantizedMatrix:
    """`quantize` in plain torch: the reference, for every grid."""
    outputs, inputs = weight.shape
    size, groups = grid.group_size, inputs // grid.group_size
    codes = torch.empty(outputs, inputs, dtype=torch.uint8)
    scales = torch.empty(outputs, groups)
    offsets = torch.empty(outputs, groups) if grid.asymmetric else None

    @torch.inference_mode()  # else a thread could not write to what the caller made in that mode
    def fill(some: slice) -> None:
        x = weight[some].detach().float().reshape(-1, size).T.contiguous()  # groups are columns: sums are vectorized
        factors = None
        if importance is not None:
            factors = importance.view(-1, size).T.repeat(1, x.shape[1] // groups).contiguous()
        found = _with_offsets(x, grid, factors) if grid.asymmetric and not grid.conventional else None
        found = found or _around_zeros(x, grid, factors)
        codes[some] = found.codes.T.reshape(-1, inputs)
        scales[some] = found.scales.view(-1, groups)
        if offsets is not None:
            offsets[some] = found.offsets.view(-1, groups)

    rows = max(1, CHUNK // max(1, inputs))
    for_each(fill, [slice(first, first + rows) for first in range(0, outputs, rows)])
    return QuantizedMatrix(codes, scales, grid.bits, size, 0 if grid.asymmetric else 1 << (grid.bits - 1), offsets)


@dataclass(frozen=True)
class _Groups:
    """codes uint8 [group size, groups]; scales and offsets float32 [groups]; value = scale · code + offset."""

    codes: Tensor
    scales: Tensor
    offsets: Tensor


def _extremes(x: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest value of each group. Raises ValueError if one is not finite."""
    low, high = x.amin(0), x.amax(0)
    if not bool(low.isfinite().all() and high.isfinite().all()):
        raise ValueError("a weight is not finite")
    return low, high


def _inverse(scale: Tensor) -> Tensor:
    """1 / scale, and 0 for a scale of 0."""
    return torch.where(scale == 0, 0.0, 1.0 / scale)


def _around_zeros(x: Tensor, grid: CodeGrid, factors: Tensor | None) -> _Groups:
    """x [group size, groups] in codes of which one stands for zero: the middle one if the grid is symmetric."""
    top = (1 << grid.bits) - 1
    low, high = _extremes(x)
    largest = torch.where(-low > high, low, high)  # of the lowest code, which is the farthest, if scales have signs
    if grid.conventional:
        largest = largest.abs()
    largest = largest.masked_fill(largest.abs() < MIN_ABS, 0.0)
    inverse = _inverse(largest)
    unit = x * inverse  # within -1 and 1: no product below overflows
    step = 2.0 / (top + 1) if grid.conventional else -2.0 / (top + 1)
    search = _ZeroSearch(unit, top, step, factors)
    if grid.asymmetric:
        low, high = (low * inverse).clamp_(max=0.0), (high * inverse).clamp_(min=0.0)
    for clipping in (ASYMMETRIC_CLIPPING if grid.asymmetric else SYMMETRIC_CLIPPING) if grid.search else ():
        if grid.asymmetric:
            start = (high - low) * (clipping / top)
            search.try_scale(start, (-clipping * low * _inverse(start)).round_().clamp_(0, top))
        else:
            search.try_scale(torch.full_like(largest, step * clipping), search.zeros)
    if grid.search:
        search.try_scale(search.scales, search.zeros)
    elif grid.asymmetric:
        search.scales = (high - low) / top
        search.zeros = (-low * _inverse(search.scales)).round_().clamp_(0, top)
    elif grid.conventional:
        search.scales.fill_(2.0 / top)
    scales = (search.scales * largest).to(grid.stored).float()
    codes = torch.addcmul(search.zeros, x, _inverse(scales)).round_().clamp_(0, top).to(torch.uint8)
    return _Groups(codes, scales, -scales * search.zeros)


class _ZeroSearch:
    """The scales [groups] and codes for zero [groups] with the least squared error so far, for x within -1 and 1.

    With codes q relative to zero and the least-squares scale, the error is Σx² - (Σqx)² / Σq²: the search maximizes
    the last term.
    """

    def __init__(self, x: Tensor, top: int, step: float, factors: Tensor | None) -> None:
        """step: the first scale; the others have its sign."""
        self._x, self._top, self._step, self._factors = x, top, step, factors
        self._q, self._product = torch.empty_like(x), torch.empty_like(x)
        self._gains = x.new_zeros(x.shape[1])
        self.zeros = x.new_full((x.shape[1],), (top + 1) // 2)
        self.scales = x.new_full((x.shape[1],), step)

    def try_scale(self, start: Tensor, zeros: Tensor) -> None:
        """Keep the least-squares scale of the codes nearest to x / start where its error is less."""
        q, product = self._q, self._product
        torch.mul(self._x, _inverse(start), out=q).round_()
        torch.clamp(q, -zeros, self._top - zeros, out=q)
        weighted = q if self._factors is None else q * self._factors
        dots = torch.mul(weighted, self._x, out=product).sum(0)
        fitted = dots / torch.mul(weighted, q, out=product).sum(0)
        gains = dots * fitted
        better = (gains > self._gains) & (fitted * self._step > 0)
        self.zeros = torch.where(better, zeros, self.zeros)
        self.scales = torch.where(better, fitted, self.scales)
        self._gains = torch.where(better, gains, self._gains)


def _with_offsets(x: Tensor, grid: CodeGrid, factors: Tensor | None) -> _Groups:
    """x [group size, groups] in codes from 0 with any offset."""
    top = (1 << grid.bits) - 1
    low, high = _extremes(x)
    middle, width = low / 2 + high / 2, high / 2 - low / 2  # halves, because the range itself may overflow
    width = width.masked_fill(width < MIN_ABS, 0.0)
    unit = (x - middle).mul_(_inverse(width))  # within -1 and 1
    search = _LineSearch(unit, top, factors)
    for clipping in ASYMMETRIC_CLIPPING if grid.search else ():
        search.try_line(torch.full_like(low, 2 * clipping / top), torch.full_like(low, -clipping))
    if grid.search:
        search.try_line(search.scales, search.offsets)
    offsets = (search.offsets * width + middle).to(grid.stored).float()
    scales = (search.scales * width).to(grid.stored).float()
    codes = (x - offsets).mul_(_inverse(scales)).round_().clamp_(0, top)
    return _Groups(codes.to(torch.uint8), scales, offsets)


class _LineSearch:
    """The scales and offsets [groups] with the least squared error so far, for x within -1 and 1.

    With the least-squares line through the points (code, value) the error is var(x) - cov(q, x)² / var(q) times the
    sum of the factors: the search maximizes the last term.
    """

    def __init__(self, x: Tensor, top: int, factors: Tensor | None) -> None:
        self._x, self._top, self._factors = x, top, factors
        self._q, self._product = torch.empty_like(x), torch.empty_like(x)
        self._sizes = len(x) if factors is None else factors.sum(0)
        self._means = (x if factors is None else x * factors).sum(0) / self._sizes
        self._gains = torch.zeros_like(self._means)
        self.scales, self.offsets = torch.full_like(self._means, 2.0 / top), torch.full_like(self._means, -1.0)

    def try_line(self, scales: Tensor, offsets: Tensor) -> None:
        """Keep the least-squares line of the codes nearest to (x - offset) / scale where its error is less."""
        q, product = self._q, self._product
        torch.sub(self._x, offsets, out=q).mul_(_inverse(scales)).round_().clamp_(0, self._top)
        weighted = q if self._factors is None else q * self._factors
        center = weighted.sum(0) / self._sizes
        covariance = torch.mul(weighted, self._x, out=product).sum(0) - center * self._means * self._sizes
        fitted = covariance / (torch.mul(weighted, q, out=product).sum(0) - center * center * self._sizes)
        gains = covariance * fitted
        better = (gains > self._gains) & (fitted > 0)
        self.scales = torch.where(better, fitted, self.scales)
        self.offsets = torch.where(better, self._means - fitted * center, self.offsets)
        self._gains = torch.where(better, gains, self._gains)
