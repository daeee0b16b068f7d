"""Draws one token per row from a filtered distribution, so that no row can see its neighbours.

Where a float sum depends on its order, it here is a sum of whole numbers: probabilities become integer
weights (`RESOLUTION` of them make 1), whose float64 sums below 2**53 are exact in any order. So a row's
token is the same in any batch, and however its sums are arranged. It knows no request.

Each filter is a threshold, so nothing is sorted but what lies close to one: top_k keeps what weighs as much
as the k-th largest, top_p (of what top_k left) as the token with which the sum is reached, min_p a share of the
largest. Equal tokens at a threshold are kept together. The draw goes through the kept ones by rising id.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

RESOLUTION = 2.0**50
_RUN = 128  # neighbouring ids that are summed first, before the one among them is sought
_SLAB = 1 << 19  # logits treated at once on a CPU, so that they stay in its cache
_FEW = 256  # most likely tokens that are looked at first, where only top_p is asked for
_BUCKET_BITS = 18  # low bits of a float32 that do not matter for its bucket: 5 of the mantissa do
_NUM_BUCKETS = (127 + 51) << (23 - _BUCKET_BITS)  # up to 2**51

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


def _mix(value: np.ndarray) -> np.ndarray:
    """splitmix64's output function (Steele, Lea & Flood, 2014) of uint64 numbers, wrapping around."""
    value = (value ^ (value >> np.uint64(30))) * _MIX1
    value = (value ^ (value >> np.uint64(27))) * _MIX2
    return value ^ (value >> np.uint64(31))


def uniforms(seeds: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """One number of [0, 1) for each pair of a seed (uint64 [rows]) and a number of tokens drawn before.

    A counter-based generator: nothing is remembered, so order, batch and preemption cannot matter.
    """
    with np.errstate(over="ignore"):
        stream = _mix(seeds + _GOLDEN)
        mixed = _mix(stream + (counts.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class Filters:
    """What each row keeps, as arrays [rows]: top_k int64 (0 = off), top_p and min_p float64."""

    top_k: np.ndarray
    top_p: np.ndarray
    min_p: np.ndarray

    @property
    def active(self) -> np.ndarray:
        """Rows that filter at all: bool [rows]."""
        return (self.top_k > 0) | (self.top_p < 1) | (self.min_p > 0)

    def take(self, rows: np.ndarray) -> Filters:
        """The same for some of the rows."""
        return Filters(self.top_k[rows], self.top_p[rows], self.min_p[rows])


def draw(logits: Tensor, chance: np.ndarray, filters: Filters) -> Tensor:
    """Token ids int64 [rows] by inverse CDF of softmax(logits [rows, vocab] float32), filtered.

    chance: numbers of [0, 1), float64 [rows]. A row without any finite logit, or with a NaN, gives -1.
    """
    rows, vocab = logits.shape
    slab = max(1, _SLAB // vocab) if logits.device.type == "cpu" else rows
    if slab >= rows:
        return _draw(logits, chance, filters)
    parts = [np.arange(start, min(start + slab, rows)) for start in range(0, rows, slab)]
    return torch.cat([_draw(logits[part[0] : part[-1] + 1], chance[part], filters.take(part)) for part in parts])


def _draw(logits: Tensor, chance: np.ndarray, filters: Filters) -> Tensor:
    weights = torch.softmax(logits, -1).mul_(RESOLUTION).floor_()  # per row of a fixed width: row-wise exact
    least = _thresholds(weights, filters)
    if least is not None:
        weights = torch.where(weights >= least[:, None], weights, 0.0)
    return _search(weights, chance)


def _search(weights: Tensor, chance: np.ndarray) -> Tensor:
    """Inverse CDF in order of token id: first the run of ids, then the id in it. -1 where nothing weighs anything."""
    rows, vocab = weights.shape
    padded = torch.nn.functional.pad(weights, (0, -vocab % _RUN)) if vocab % _RUN else weights
    runs = padded.view(rows, -1, _RUN)
    upto = runs.sum(-1, dtype=torch.float64).cumsum_(-1)  # [rows, runs]
    total = upto[:, -1]
    aim = torch.from_numpy(chance).to(total.device) * total
    target = torch.minimum(aim.floor_(), total - 1)[:, None]  # a whole number below the total
    run = torch.searchsorted(upto, target, right=True).clamp_(max=upto.shape[1] - 1)  # [rows, 1]
    before = torch.where(run > 0, upto.gather(1, (run - 1).clamp_(min=0)), 0.0)
    inside = runs[torch.arange(rows, device=run.device), run[:, 0]].to(torch.float64).cumsum_(-1)  # [rows, _RUN]
    place = torch.searchsorted(inside, target - before, right=True)
    return torch.where(total > 0, (run * _RUN + place)[:, 0], -1)


def _thresholds(weights: Tensor, filters: Filters) -> Tensor | None:
    """The least weight that each row keeps, float32 [rows]; None if no row filters."""
    if not filters.active.any():
        return None
    device = weights.device
    least = weights.new_zeros(len(weights))
    by_k, by_p = filters.top_k > 0, filters.top_p < 1
    for chosen, find in ((by_k, _of_top_k), (by_p & ~by_k, _of_top_p)):
        rows = np.flatnonzero(chosen)
        if len(rows):
            index = torch.from_numpy(rows).to(device)
            some = weights if len(rows) == len(weights) else weights.index_select(0, index)
            least[index] = find(some, filters.take(rows))
    if filters.min_p.any():
        share = torch.from_numpy(filters.min_p).to(device) * weights.amax(-1)
        least = torch.maximum(least, share.to(torch.float32))
    return least


def _of_top_k(weights: Tensor, filters: Filters) -> Tensor:
    """Thresholds of rows with top_k and perhaps top_p."""
    device, vocab = weights.device, weights.shape[1]
    k = np.minimum(filters.top_k, vocab)
    top = weights.topk(min(int(k.max()) + 1, vocab), -1).values  # one more, to see whether equals follow the last
    last = torch.from_numpy(k - 1).to(device)[:, None]
    kth = top.gather(1, last)
    if (filters.top_p >= 1).all():
        return kth[:, 0]
    upto = top.to(torch.float64).cumsum_(-1)
    kept = upto.gather(1, last)[:, 0]
    if (top.gather(1, (last + 1).clamp_(max=top.shape[1] - 1)) == kth).any():
        kept = torch.where(weights >= kth, weights, 0.0).sum(-1, dtype=torch.float64)
    aim = torch.from_numpy(filters.top_p).to(device) * kept
    return top.gather(1, torch.minimum(torch.searchsorted(upto, aim[:, None]), last))[:, 0]


def _of_top_p(weights: Tensor, filters: Filters) -> Tensor:
    """Thresholds of rows with top_p alone. Among the `_FEW` largest if they suffice, as they mostly do."""
    device = weights.device
    aim = torch.from_numpy(filters.top_p).to(device) * weights.sum(-1, dtype=torch.float64)
    top = weights.topk(min(_FEW, weights.shape[1]), -1).values
    upto = top.to(torch.float64).cumsum_(-1)
    reached = torch.searchsorted(upto, aim[:, None])
    least = top.gather(1, reached.clamp(max=top.shape[1] - 1))[:, 0]
    flat = (upto[:, -1] < aim).nonzero()[:, 0]
    if len(flat):
        least[flat] = _by_buckets(weights[flat], aim[flat])
    return least


def _by_buckets(weights: Tensor, aim: Tensor) -> Tensor:
    """For each row the weight with which the sum, the largest first, reaches `aim` [rows].

    Weights [rows, vocab] are summed by bucket, and only the bucket in which that happens is sorted.
    """
    device, rows = weights.device, len(weights)
    from_above = (_NUM_BUCKETS - 1 - (weights.view(torch.int32) >> _BUCKET_BITS)).to(torch.int64)
    sums = torch.zeros(rows, _NUM_BUCKETS, dtype=torch.float64, device=device)
    upto = sums.scatter_add_(1, from_above, weights.to(torch.float64)).cumsum_(-1)
    turn = torch.searchsorted(upto, aim[:, None]).clamp_(max=_NUM_BUCKETS - 1)
    before = torch.where(turn > 0, upto.gather(1, (turn - 1).clamp_(min=0)), 0.0)[:, 0]
    row, token = (from_above == turn).nonzero(as_tuple=True)
    return _edge(weights[row, token], row, aim - before)


def _edge(weights: Tensor, row: Tensor, aim: Tensor) -> Tensor:
    """For each row the weight with which the sum of its `weights`, the largest first, reaches `aim` [rows]."""
    rows = len(aim)
    counts = torch.bincount(row, minlength=rows)
    place = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    table = weights.new_zeros(rows, max(1, int(counts.max())))
    table[row, place] = weights
    ordered = table.sort(-1, descending=True).values
    reached = torch.searchsorted(ordered.to(torch.float64).cumsum_(-1), aim[:, None])
    return ordered.gather(1, torch.minimum(reached, (counts - 1).clamp_(min=0)[:, None]))[:, 0]
