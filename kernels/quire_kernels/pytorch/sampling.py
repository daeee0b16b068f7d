"""Sampling and log-probabilities in plain torch, batched; defined by `sampling.SampleOp` and `sampling.LogprobsOp`.

Where a float sum would depend on its order, integers are summed: probabilities become integer weights (`RESOLUTION`
is probability 1), and float64 sums of integers below 2**53 are exact in any order. So a row's token is the same
in any batch and however its sums are arranged.

Each filter is a threshold, so only weights near a threshold are sorted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire_kernels.sampling import Floats, Integers

RESOLUTION = 2.0**50
_RUN = 128  # consecutive ids that are summed first, to find the run of the sampled id
_SLAB = 1 << 19  # logits processed at once on a CPU, so that they stay in its cache
_FEW = 256  # most likely tokens to try first, where only top_p is set
_BUCKET_BITS = 18  # low bits of a float32 that its bucket ignores; 5 bits of the mantissa remain
_NUM_BUCKETS = (127 + 51) << (23 - _BUCKET_BITS)  # up to 2**51
_COLD = 1e-2  # below this temperature the quotient may overflow float32


@dataclass(frozen=True)
class _RowSettings:
    """Sampling settings of each row, as arrays [rows]."""

    temperature: Floats
    uniform: Floats
    top_k: Integers
    top_p: Floats
    min_p: Floats

    @property
    def filters(self) -> bool:
        """Whether any row filters tokens."""
        return bool(((self.top_k > 0) | (self.top_p < 1) | (self.min_p > 0)).any())

    def take(self, rows: Integers) -> _RowSettings:
        """Settings of some of the rows."""
        return _RowSettings(
            self.temperature[rows], self.uniform[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows]
        )


def sample(
    logits: Tensor, temperature: Floats, uniform: Floats, top_k: Integers, top_p: Floats, min_p: Floats
) -> Tensor:
    settings = _RowSettings(temperature, uniform, top_k, top_p, min_p)
    sampled = np.flatnonzero(temperature != 0)
    if len(sampled) == len(logits):
        return _by_slabs(logits, settings)
    values, tokens = logits.max(-1)
    tokens = torch.where(values.isfinite(), tokens, -1)
    if len(sampled):
        index = torch.from_numpy(sampled).to(logits.device)
        tokens[index] = _by_slabs(logits.index_select(0, index), settings.take(sampled))
    return tokens


def _by_slabs(logits: Tensor, settings: _RowSettings) -> Tensor:
    rows, vocab = logits.shape
    slab = max(1, _SLAB // vocab) if logits.device.type == "cpu" else rows
    if slab >= rows:
        return _sample_rows(logits, settings)
    parts = [np.arange(start, min(start + slab, rows)) for start in range(0, rows, slab)]
    return torch.cat([_sample_rows(logits[part[0] : part[-1] + 1], settings.take(part)) for part in parts])


def _sample_rows(logits: Tensor, settings: _RowSettings) -> Tensor:
    temperature = np.maximum(settings.temperature, torch.finfo(torch.float32).tiny)  # smallest normal float32
    tempered = _tempered(logits, torch.from_numpy(temperature).to(logits.device, torch.float32))
    # softmax over a fixed width: a row's bits do not depend on the batch
    weights = torch.softmax(tempered, -1).mul_(RESOLUTION).floor_()
    threshold = _thresholds(weights, settings)
    if threshold is not None:
        weights = torch.where(weights >= threshold[:, None], weights, 0.0)
    return _search(weights, settings.uniform)


def _tempered(logits: Tensor, temperature: Tensor) -> Tensor:
    """logits / temperature; where that could overflow, the distances to the largest logit are divided instead."""
    cold = temperature < _COLD
    if cold.any():
        logits = logits - torch.where(cold, logits.amax(-1), 0.0)[:, None]
    return logits / temperature[:, None]


def _search(weights: Tensor, uniform: Floats) -> Tensor:
    """Inverse CDF in id order: first the run of ids, then the id within it. -1 where all weights are 0."""
    rows, vocab = weights.shape
    padded = torch.nn.functional.pad(weights, (0, -vocab % _RUN)) if vocab % _RUN else weights
    runs = padded.view(rows, -1, _RUN)
    cumulative = runs.sum(-1, dtype=torch.float64).cumsum_(-1)  # [rows, runs]
    total = cumulative[:, -1]
    aim = torch.from_numpy(uniform).to(total.device) * total
    target = torch.minimum(aim.floor_(), total - 1)[:, None]  # an integer below the total
    run = torch.searchsorted(cumulative, target, right=True).clamp_(max=cumulative.shape[1] - 1)  # [rows, 1]
    before = torch.where(run > 0, cumulative.gather(1, (run - 1).clamp_(min=0)), 0.0)
    inside = runs[torch.arange(rows, device=run.device), run[:, 0]].to(torch.float64).cumsum_(-1)  # [rows, _RUN]
    offset = torch.searchsorted(inside, target - before, right=True)
    return torch.where(total > 0, (run * _RUN + offset)[:, 0], -1)


def _thresholds(weights: Tensor, settings: _RowSettings) -> Tensor | None:
    """The smallest weight that each row keeps, float32 [rows]; None if no row filters."""
    if not settings.filters:
        return None
    device = weights.device
    threshold = weights.new_zeros(len(weights))
    by_k, by_p = settings.top_k > 0, settings.top_p < 1
    for chosen, find in ((by_k, _of_top_k), (by_p & ~by_k, _of_top_p)):
        rows = np.flatnonzero(chosen)
        if len(rows):
            index = torch.from_numpy(rows).to(device)
            some = weights if len(rows) == len(weights) else weights.index_select(0, index)
            threshold[index] = find(some, settings.take(rows))
    if settings.min_p.any():
        minimum = torch.from_numpy(settings.min_p).to(device) * weights.amax(-1)
        threshold = torch.maximum(threshold, minimum.to(torch.float32))
    return threshold


def _of_top_k(weights: Tensor, settings: _RowSettings) -> Tensor:
    """Thresholds of rows with top_k and perhaps top_p."""
    device, vocab = weights.device, weights.shape[1]
    k = np.minimum(settings.top_k, vocab)
    top = weights.topk(min(int(k.max()) + 1, vocab), -1).values  # one more than needed, to detect ties with the last
    last = torch.from_numpy(k - 1).to(device)[:, None]
    kth = top.gather(1, last)
    if (settings.top_p >= 1).all():
        return kth[:, 0]
    cumulative = top.to(torch.float64).cumsum_(-1)
    kept = cumulative.gather(1, last)[:, 0]
    if (top.gather(1, (last + 1).clamp_(max=top.shape[1] - 1)) == kth).any():
        kept = torch.where(weights >= kth, weights, 0.0).sum(-1, dtype=torch.float64)
    aim = torch.from_numpy(settings.top_p).to(device) * kept
    return top.gather(1, torch.minimum(torch.searchsorted(cumulative, aim[:, None]), last))[:, 0]


def _of_top_p(weights: Tensor, settings: _RowSettings) -> Tensor:
    """Thresholds of rows that filter by top_p alone. Usually the `_FEW` largest weights suffice."""
    device = weights.device
    aim = torch.from_numpy(settings.top_p).to(device) * weights.sum(-1, dtype=torch.float64)
    top = weights.topk(min(_FEW, weights.shape[1]), -1).values
    cumulative = top.to(torch.float64).cumsum_(-1)
    reached = torch.searchsorted(cumulative, aim[:, None])
    threshold = top.gather(1, reached.clamp(max=top.shape[1] - 1))[:, 0]
    flat = (cumulative[:, -1] < aim).nonzero()[:, 0]
    if len(flat):
        threshold[flat] = _by_buckets(weights[flat], aim[flat])
    return threshold


def _by_buckets(weights: Tensor, aim: Tensor) -> Tensor:
    """For each row the weight at which the sum in descending order reaches `aim` [rows].

    The weights [rows, vocab] are summed by bucket, and only the bucket in which the sum reaches `aim` is sorted.
    """
    device, rows = weights.device, len(weights)
    from_above = (_NUM_BUCKETS - 1 - (weights.view(torch.int32) >> _BUCKET_BITS)).to(torch.int64)
    sums = torch.zeros(rows, _NUM_BUCKETS, dtype=torch.float64, device=device)
    cumulative = sums.scatter_add_(1, from_above, weights.to(torch.float64)).cumsum_(-1)
    reached = torch.searchsorted(cumulative, aim[:, None]).clamp_(max=_NUM_BUCKETS - 1)
    before = torch.where(reached > 0, cumulative.gather(1, (reached - 1).clamp_(min=0)), 0.0)[:, 0]
    row, token = (from_above == reached).nonzero(as_tuple=True)
    return _edge(weights[row, token], row, aim - before)


def _edge(weights: Tensor, row: Tensor, aim: Tensor) -> Tensor:
    """For each row the weight at which the sum of its `weights`, in descending order, reaches `aim` [rows]."""
    rows = len(aim)
    counts = torch.bincount(row, minlength=rows)
    offset = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    table = weights.new_zeros(rows, max(1, int(counts.max())))
    table[row, offset] = weights
    ordered = table.sort(-1, descending=True).values
    reached = torch.searchsorted(ordered.to(torch.float64).cumsum_(-1), aim[:, None])
    return ordered.gather(1, torch.minimum(reached, (counts - 1).clamp_(min=0)[:, None]))[:, 0]


def logprobs(logits: Tensor, tokens: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    all_logprobs = torch.log_softmax(logits, -1)  # unlike logsumexp, independent of the number of rows
    rank = (logits > logits.gather(-1, tokens[:, None])).sum(-1) + 1
    ids = _largest(logits, min(top, logits.shape[-1]))
    return all_logprobs.gather(-1, tokens[:, None])[:, 0], rank, ids, all_logprobs.gather(-1, ids)


def _largest(logits: Tensor, count: int) -> Tensor:
    """Ids of the `count` largest logits of each row, ties by ascending id."""
    values, ids = logits.topk(count, -1)
    if 0 < count < logits.shape[-1]:
        _first_equals(logits, values, ids)
    ids, order = ids.sort(-1)
    order = values.gather(-1, order).sort(stable=True, dim=-1, descending=True).indices
    return ids.gather(-1, order)


def _first_equals(logits: Tensor, values: Tensor, ids: Tensor) -> None:
    """Put the lowest ids among logits equal to the last value into `ids`: `topk` returns ties in no defined order."""
    last = values[:, -1:]
    selected, equal = values == last, logits == last
    for row in (equal.sum(-1) > selected.sum(-1)).nonzero()[:, 0].tolist():
        columns = selected[row].nonzero()[:, 0]
        ids[row, columns] = equal[row].nonzero()[: len(columns), 0]


def mask_logits(logits: Tensor, masks: Tensor, rows: Tensor) -> Tensor:
    bits = torch.arange(32, device=masks.device, dtype=torch.int32)
    vocab = logits.shape[1]
    for i in range(0, len(rows), step := max(1, _SLAB // vocab)):
        forbidden = masks[i : i + step, :, None].bitwise_right_shift(bits).bitwise_and_(1).flatten(1)[:, :vocab] == 0
        some = rows[i : i + step]
        logits[some] = logits[some].masked_fill_(forbidden, -torch.inf)
    return logits
