"""Draws one token per row from a filtered distribution, so that no row can see its neighbours.

Where a float sum depends on its order, it here is a sum of whole numbers: probabilities become integer
weights (`RESOLUTION` of them make 1), whose float64 sums below 2**53 are exact in any order. So a row's
token is the same in any batch, and whichever of the ways below leads to it. It knows no request.

Order of the filters: top_k, then top_p of what is left, then min_p. Tokens as likely as the last one that
top_k lets in are let in too, equal ones at the edge of top_p go by smallest id.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

RESOLUTION = 2.0**50
_RUN = 128  # neighbouring ids summed together when the whole vocabulary is searched
_LANE = 64  # neighbouring ids of which only the largest counts when top_k is bounded from below
_SMALL = 8192  # rows with at most so many candidates are sorted together

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
    weights = torch.softmax(logits, -1).mul_(RESOLUTION).floor_()  # per row of a fixed width: row-wise exact
    active = filters.active
    if not active.any():
        return _search(weights, chance)
    if active.all():
        return _filtered(weights, chance, filters)
    ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    for rows, part in ((np.flatnonzero(~active), None), (np.flatnonzero(active), filters)):
        index = torch.from_numpy(rows).to(logits.device)
        some = weights.index_select(0, index)
        ids[index] = _search(some, chance[rows]) if part is None else _filtered(some, chance[rows], part.take(rows))
    return ids


def _target(chance: np.ndarray, total: Tensor) -> Tensor:
    """The weight at which the drawn token lies: a whole number below the total, [rows]."""
    aim = torch.from_numpy(chance).to(total.device)
    return torch.minimum((aim * total).floor_(), total - 1)


def _search(weights: Tensor, chance: np.ndarray) -> Tensor:
    """Inverse CDF in order of token id over whole rows: first the run of ids, then the id in it."""
    rows, vocab = weights.shape
    padded = torch.nn.functional.pad(weights, (0, -vocab % _RUN)) if vocab % _RUN else weights
    runs = padded.view(rows, -1, _RUN)
    upto = runs.sum(-1, dtype=torch.float64).cumsum_(-1)  # [rows, runs]
    total = upto[:, -1]
    target = _target(chance, total)[:, None]
    run = torch.searchsorted(upto, target, right=True).clamp_(max=upto.shape[1] - 1)  # [rows, 1]
    before = torch.where(run > 0, upto.gather(1, (run - 1).clamp_(min=0)), 0.0)
    inside = runs[torch.arange(rows, device=run.device), run[:, 0]].to(torch.float64).cumsum_(-1)  # [rows, _RUN]
    place = torch.searchsorted(inside, target - before, right=True)
    ids = (run * _RUN + place)[:, 0]
    return torch.where(total > 0, ids, -1)


def _filtered(weights: Tensor, chance: np.ndarray, filters: Filters) -> Tensor:
    """Inverse CDF among the tokens that the filters keep, in order of falling weight."""
    candidates = weights >= _bounds(weights, filters)[:, None]
    counts = candidates.sum(-1).cpu().numpy()
    small = counts <= _SMALL
    if small.all():
        return _among(weights, candidates, counts, chance, filters)
    ids = torch.empty(len(weights), dtype=torch.int64, device=weights.device)
    groups = [np.flatnonzero(small), *np.flatnonzero(~small)[:, None]]
    for rows in groups:
        if len(rows):
            index = torch.from_numpy(rows).to(weights.device)
            some = weights.index_select(0, index), candidates.index_select(0, index)
            ids[index] = _among(*some, counts[rows], chance[rows], filters.take(rows))
    return ids


def _bounds(weights: Tensor, filters: Filters) -> Tensor:
    """For each row a weight that everything kept reaches, so that few tokens need sorting. float32 [rows].

    min_p: its own threshold, a little lowered. top_p: all tokens below (1 - top_p) · total / vocab weigh
    less than 1 - top_p together. top_k: the k-th largest among maxima of lanes is at most the k-th largest.
    """
    rows, vocab = weights.shape
    device = weights.device
    most = weights.amax(-1).to(torch.float64)
    free_p = (filters.top_p >= 1) | (filters.top_k == 0)  # else top_p counts tokens that min_p drops later
    low = torch.from_numpy(np.where(free_p, filters.min_p, 0.0)).to(device) * most
    only_p = torch.from_numpy(np.where(filters.top_k > 0, 0.0, 1 - filters.top_p)).to(device)
    low = torch.maximum(low, only_p * weights.sum(-1, dtype=torch.float64) / vocab)
    widest = int(filters.top_k.max())
    if 0 < widest <= vocab // _LANE:
        lanes = weights[:, : vocab // _LANE * _LANE].view(rows, -1, _LANE).amax(-1)
        top = lanes.topk(widest, -1).values
        k = torch.from_numpy(filters.top_k).to(device)
        kth = top.gather(1, (k - 1).clamp_(min=0)[:, None])[:, 0].to(torch.float64)
        low = torch.where(k > 0, torch.maximum(low, kth), low)
    return (low * (1 - 1e-6)).to(torch.float32)


def _among(weights: Tensor, candidates: Tensor, counts: np.ndarray, chance: np.ndarray, filters: Filters) -> Tensor:
    """`_filtered` with the candidates (bool [rows, vocab], `counts` per row) known."""
    rows, device = len(weights), weights.device
    row, token = candidates.nonzero(as_tuple=True)  # ids rise within a row
    starts = torch.from_numpy(np.cumsum(counts) - counts).to(device)
    place = torch.arange(len(row), device=device) - starts[row]
    width = max(int(counts.max()), 1)
    ids = torch.full((rows, width), -1, dtype=torch.int64, device=device)
    some = torch.full((rows, width), -1.0, dtype=torch.float32, device=device)
    ids[row, place] = token
    some[row, place] = weights[row, token]
    ordered, order = torch.sort(some, dim=-1, descending=True, stable=True)  # equal weights by rising id
    kept = _keep(ordered.to(torch.float64).clamp_(min=0), weights.sum(-1, dtype=torch.float64), filters)
    upto = kept.cumsum(-1)
    total = upto[:, -1]
    choice = torch.searchsorted(upto, _target(chance, total)[:, None], right=True).clamp_(max=width - 1)
    return torch.where(total > 0, ids.gather(1, order.gather(1, choice))[:, 0], -1)


def _keep(ordered: Tensor, totals: Tensor, filters: Filters) -> Tensor:
    """Weights [rows, width], largest first, with zeros for what the filters drop; totals [rows] of all tokens."""
    device, width = ordered.device, ordered.shape[1]
    k = torch.from_numpy(np.where(filters.top_k > 0, np.minimum(filters.top_k, width), width)).to(device)
    kth = ordered.gather(1, k[:, None] - 1)
    kept = torch.where(ordered >= kth, ordered, 0.0)
    upto = kept.cumsum(-1)
    whole = torch.where(torch.from_numpy(filters.top_k).to(device) > 0, upto[:, -1], totals)
    top_p = torch.from_numpy(filters.top_p).to(device)
    kept = torch.where(upto - kept < (top_p * whole)[:, None], kept, 0.0)
    min_p = torch.from_numpy(filters.min_p).to(device)[:, None]
    return torch.where(ordered >= min_p * ordered[:, :1], kept, 0.0)
