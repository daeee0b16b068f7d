"""Shares of the running sequences and of a step's tokens, between clients and between sets of adapters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Iterable, Mapping
from math import ceil
from types import MappingProxyType
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)

EQUAL: Mapping[Any, float] = MappingProxyType({})
"""Weights of 1."""

ROUNDING = 1e-9
"""Far more than the rounding errors of sums of weights, far less than a weight."""


def over_share(
    waiting: Mapping[K, int], running: Iterable[K], max_seqs: int, weights: Mapping[K, float] = EQUAL
) -> set[K]:
    """The waiting keys (clients, or sets of adapters) that have their share of `max_seqs` running seqs while other keys
    wait with less.

    waiting: priority of the first seq of each key. running: the key of each running seq. weights: 1 for keys without. A
    key with a more urgent priority than all others is left out. A key that waits alone may have all running seqs.
    """
    if len(waiting) < 2:
        return set()
    counts = Counter(running)
    total = sum(weights.get(key, 1.0) for key in counts.keys() | waiting.keys())
    full = {key for key in waiting if counts[key] >= weighted_part(max_seqs, weights.get(key, 1.0), total)}
    return unless_all(full, waiting)


def unless_all(keys: set[K], waiting: Mapping[K, int]) -> set[K]:
    """Those of `keys` that are no more urgent than every other waiting key; none if all wait."""
    return less_urgent(keys, waiting) if len(keys) < len(waiting) else set()


def weighted_part(max_seqs: int, weight: float, total: float) -> int:
    """The running seqs of a weight among those of a total weight; at least 1."""
    return max(1, int(max_seqs * weight / total + ROUNDING))


def max_min_places(
    max_seqs: int, wanted: Mapping[K, int], weights: Mapping[K, float] = EQUAL, last: Container[K] = ()
) -> dict[K, int]:
    """`max_seqs` running seqs divided max-min fairly: parts by weight (1 for keys without), at least 1; what a key does
    not want goes to the others, those in `last` after the others. An indivisible rest is not divided.
    """
    total = sum(weights.get(key, 1.0) for key in wanted)
    behind = {
        key: min(wanted[key], weighted_part(max_seqs, weights.get(key, 1.0), total)) for key in wanted if key in last
    }
    shares = _max_min(max_seqs - sum(behind.values()), {k: wanted[k] for k in wanted if k not in behind}, weights)
    if any(shares[key] < wanted[key] for key in shares):
        return shares | behind
    left = max_seqs - sum(shares.values())
    more = _max_min(left, {key: wanted[key] for key in behind}, weights)
    more = {key: max(more[key], part) for key, part in behind.items()}  # rounded apart from the others it may be less
    return shares | (more if sum(more.values()) <= left else behind)


def _max_min(max_seqs: int, wanted: Mapping[K, int], weights: Mapping[K, float]) -> dict[K, int]:
    shares: dict[K, int] = {}
    left, total = max_seqs, sum(weights.get(key, 1.0) for key in wanted)
    for key in sorted(wanted, key=lambda key: wanted[key] / weights.get(key, 1.0)):
        weight = weights.get(key, 1.0)
        shares[key] = min(wanted[key], weighted_part(left, weight, total))
        if shares[key] == wanted[key]:  # else no key that follows gets all that it wants
            left, total = left - shares[key], total - weight
    return shares


def max_min_shares(budget: int, demands: Mapping[K, int], weights: Mapping[K, float] = EQUAL) -> dict[K, int]:
    """`budget` divided max-min fairly: shares by weight (1 for keys without); what a small demand leaves goes to the
    others.

    An indivisible rest goes to the first of those with equal demands.
    """
    shares: dict[K, int] = {}
    left, total = budget, sum(weights.get(key, 1.0) for key in demands)
    for key in sorted(demands, key=lambda key: demands[key] / weights.get(key, 1.0)):
        weight = weights.get(key, 1.0)
        shares[key] = min(demands[key], left, ceil(left * weight / total - ROUNDING))
        left, total = left - shares[key], total - weight
    return shares


def complete(shares: dict[K, int], demands: Mapping[K, int], least: Mapping[K, int], limit: int) -> None:
    """Let prompts end in one step rather than all of them in two: the first keys get what they lack from the last ones.

    demands: in the order of precedence. least: what each key keeps of its share. Demands of `limit` are without end.
    """
    lacking = [key for key in demands if shares[key] < demands[key]]
    for i, key in enumerate(lacking):
        if demands[key] < limit:
            for other in reversed(lacking[i + 1 :]):
                given = max(0, min(shares[other] - least.get(other, 0), demands[key] - shares[key]))
                shares[other] -= given
                shares[key] += given


def less_urgent(keys: set[K], waiting: Mapping[K, int]) -> set[K]:
    """Those of `keys` that are no more urgent than every other waiting key."""
    most_urgent = min((priority for key, priority in waiting.items() if key not in keys), default=0)
    return {key for key in keys if waiting[key] >= most_urgent}
