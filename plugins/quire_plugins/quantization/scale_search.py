"""Search for the scales of integer codes: less squared error than scales that span the largest value.

With given codes the best scale (and offset) of a group is a least-squares fit, and with a given scale the best codes
are the nearest ones. Both are alternated from several starting scales that clip the largest values more or less, and
the fit with the least squared error is kept: the alternation of Lloyd's quantizer (IEEE Trans. Inf. Theory 28, 1982)
from the clipping factors of OMSE (arXiv 1902.06822). No data is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire_kernels.int8 import MIN_ABS
from quire_kernels.quantized import MIN_GROUP, QuantizedMatrix

CHUNK = 1 << 18
"""Elements that are searched at a time: their buffers fit into a CPU's caches."""

SYMMETRIC_CLIPPING = (1.14, 1.06, 1.0, 0.94, 0.88, 0.82, 0.76, 0.7)
"""Starting scales with codes around zero, relative to the one that gives the largest value the lowest code."""

ASYMMETRIC_CLIPPING = (1.0, 0.95, 0.9, 0.85, 0.8, 0.74)
"""Starting scales with an offset, relative to the one whose codes span all values."""


def group_size_for(inputs: int, wanted: int) -> int:
    """The largest multiple of 16 that divides `inputs` and is at most `wanted`; all inputs if there is none."""
    sizes = range(wanted - wanted % MIN_GROUP, 0, -MIN_GROUP)
    return next((size for size in sizes if inputs % size == 0), inputs)


def quantize(
    weight: Tensor,
    bits: int,
    group_size: int,
    asymmetric: bool = False,
    stored: torch.dtype = torch.float32,
    search: bool = True,
) -> QuantizedMatrix:
    """A matrix [outputs, inputs] in `bits` bits; group_size divides the inputs.

    asymmetric: with an offset for each group. stored: dtype that scales and offsets are rounded to before codes are
    chosen; the result has them in float32. search: False rounds to nearest with scales that span all values.
    The result does not depend on the number of threads. Raises ValueError if a weight is not finite.
    """
    outputs, inputs = weight.shape
    groups = inputs // group_size
    codes = torch.empty(outputs, inputs, dtype=torch.uint8)
    scales = torch.empty(outputs, groups)
    offsets = torch.empty(outputs, groups) if asymmetric else None
    rows = max(1, CHUNK // max(1, inputs))
    for first in range(0, outputs, rows):
        some = slice(first, first + rows)
        x = weight[some].detach().float().reshape(-1, group_size).T.contiguous()  # sums over groups are vectorized
        if asymmetric:
            assert offsets is not None
            found, scale, offset = _asymmetric(x, (1 << bits) - 1, stored, search)
            offsets[some] = offset.view(-1, groups)
        else:
            found, scale = _symmetric(x, 1 << (bits - 1), stored, search)
        codes[some] = found.T.reshape(-1, inputs)
        scales[some] = scale.view(-1, groups)
    zero = 0 if asymmetric else 1 << (bits - 1)
    return QuantizedMatrix(codes, scales, bits, group_size, zero=zero, offsets=offsets)


def _check_finite(extremes: Tensor) -> None:
    if not bool(extremes.isfinite().all()):
        raise ValueError("a weight is not finite")


def _inverse(scale: Tensor) -> Tensor:
    """1 / scale, and 0 for a scale of 0."""
    return torch.where(scale == 0, 0.0, 1.0 / scale)


def _symmetric(x: Tensor, half: int, stored: torch.dtype, search: bool) -> tuple[Tensor, Tensor]:
    """x [group size, groups] -> codes uint8, and scales [groups]; `half` stands for zero."""
    largest = x.gather(0, x.abs().argmax(0, keepdim=True))[0]
    _check_finite(largest)
    largest = largest.masked_fill(largest.abs() < MIN_ABS, 0.0)
    unit = x * _inverse(largest)  # the value of the largest magnitude becomes 1: no product below overflows
    scale = torch.full_like(largest, -1.0 / half)
    if search:
        scale = _best_symmetric(unit, half, scale)
    scale = (scale * largest).to(stored).float()
    codes = (x * _inverse(scale)).round_().clamp_(-half, half - 1)
    return codes.add_(half).to(torch.uint8), scale


def _best_symmetric(x: Tensor, half: int, start: Tensor) -> Tensor:
    """The scales with the least squared error that the search finds, [groups].

    With the least-squares scale the error is Σx² - (Σqx)² / Σq²: the search maximizes the last term.
    """
    best, scale = torch.zeros_like(start), start.clone()
    q, product = torch.empty_like(x), torch.empty_like(x)

    def fit() -> None:
        """Keep the least-squares scale of the codes `q` where it is better."""
        dot = torch.mul(q, x, out=product).sum(0)
        fitted = dot / torch.mul(q, q, out=product).sum(0)
        gain = dot * fitted
        better = gain > best
        torch.where(better, fitted, scale, out=scale)
        torch.where(better, gain, best, out=best)

    for clipping in SYMMETRIC_CLIPPING:
        torch.mul(x, -half / clipping, out=q).round_().clamp_(-half, half - 1)
        fit()
    torch.mul(x, _inverse(scale), out=q).round_().clamp_(-half, half - 1)
    fit()
    return scale


def _asymmetric(x: Tensor, top: int, stored: torch.dtype, search: bool) -> tuple[Tensor, Tensor, Tensor]:
    """x [group size, groups] -> codes uint8 from 0 to `top`, scales [groups] and offsets [groups]."""
    low, high = x.amin(0), x.amax(0)
    _check_finite(low)
    _check_finite(high)
    middle, width = low / 2 + high / 2, high / 2 - low / 2  # halves, because the range itself may overflow
    width = width.masked_fill(width < MIN_ABS, 0.0)
    unit = (x - middle).mul_(_inverse(width))  # -1 to 1
    scale, offset = torch.full_like(low, 2.0 / top), torch.full_like(low, -1.0)
    if search:
        scale, offset = _best_asymmetric(unit, top, scale, offset)
    offset = (offset * width + middle).to(stored).float()
    scale = (scale * width).to(stored).float()
    codes = (x - offset).mul_(_inverse(scale)).round_().clamp_(0, top)
    return codes.to(torch.uint8), scale, offset


def _best_asymmetric(x: Tensor, top: int, scale: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """The scales and offsets with the least squared error that the search finds, each [groups].

    With the least-squares line through (code, value) the error is var(x) - cov(q, x)² / var(q) times the group size:
    the search maximizes the last term.
    """
    size = len(x)
    mean = x.sum(0) / size
    best, scale, offset = torch.zeros_like(mean), scale.clone(), offset.clone()
    q, product = torch.empty_like(x), torch.empty_like(x)

    def fit() -> None:
        """Keep the least-squares scale and offset of the codes `q` where they are better."""
        center = q.sum(0) / size
        covariance = torch.mul(q, x, out=product).sum(0) - center * mean * size
        fitted = covariance / (torch.mul(q, q, out=product).sum(0) - center * center * size)
        gain = covariance * fitted
        better = (gain > best) & (fitted > 0)
        torch.where(better, fitted, scale, out=scale)
        torch.where(better, mean - fitted * center, offset, out=offset)
        torch.where(better, gain, best, out=best)

    for clipping in ASYMMETRIC_CLIPPING:
        torch.add(x, clipping, out=q).mul_(top / (2 * clipping)).round_().clamp_(0, top)
        fit()
    torch.sub(x, offset, out=q).mul_(_inverse(scale)).round_().clamp_(0, top)
    fit()
    return scale, offset
