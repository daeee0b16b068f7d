"""Decides which models leave memory and which is loaded next. Only data and numbers: no clock, no I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_OVERTAKEN_S = 10.0
"""A model that has waited for so long is not overtaken any more by one that needs less memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resident:
    """A model in memory, or one that is being loaded or unloaded.

    num_bytes: what it takes. last_used: when its last request ended. keep_alive_s: how long it may be idle. is_fixed:
    it is not unloaded for others. is_busy: it has requests in flight or queued, or is being loaded or unloaded.
    """

    name: str
    num_bytes: int
    last_used: float = 0.0
    keep_alive_s: float = math.inf
    is_fixed: bool = False
    is_busy: bool = False

    @property
    def idle_until(self) -> float:
        """When it is unloaded because it was idle; infinite for a busy one."""
        return math.inf if self.is_busy else self.last_used + self.keep_alive_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A model that requests wait for. since: when the first of them came."""

    name: str
    num_bytes: int
    since: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Load `name`, after the models `evicted` are unloaded."""

    name: str
    evicted: tuple[str, ...]


def models_to_evict(residents: Iterable[Resident], limit: float, needed: int) -> tuple[str, ...] | None:
    """The models to unload so that `needed` more bytes fit into `limit`: the least recently used, and none that could
    stay. None if that is not possible now.
    """
    residents = list(residents)
    over = sum(one.num_bytes for one in residents) + needed - limit
    evicted: list[Resident] = []
    for one in sorted(residents, key=lambda one: (one.last_used, one.name)):
        if over > 0 and not one.is_busy and not one.is_fixed:
            evicted.append(one)
            over -= one.num_bytes
    if over > 0:
        return None
    for one in reversed(evicted):  # a larger one that was used later may suffice without it
        if over + one.num_bytes <= 0:
            evicted.remove(one)
            over += one.num_bytes
    return tuple(one.name for one in evicted)


def next_load(wanted: Sequence[Wanted], residents: Sequence[Resident], limit: float, now: float) -> Load | None:
    """The load to begin; None if nothing is wanted or nothing fits now.

    Models are loaded in the order in which they were first asked for. One for which there is no room now is overtaken
    by later ones for a while.
    """
    for one in sorted(wanted, key=lambda one: one.since):
        evicted = models_to_evict(residents, limit, one.num_bytes)
        if evicted is not None:
            return Load(name=one.name, evicted=evicted)
        if now - one.since > MAX_OVERTAKEN_S and one.num_bytes <= limit:
            return None
    return None


def idle_too_long(residents: Iterable[Resident], now: float) -> tuple[str, ...]:
    """The models to unload because nothing has asked for them for as long as they may be idle."""
    return tuple(one.name for one in residents if one.idle_until <= now)


def next_deadline(residents: Iterable[Resident]) -> float:
    """When the next model may become `idle_too_long`; infinite if none will."""
    return min((one.idle_until for one in residents), default=math.inf)
