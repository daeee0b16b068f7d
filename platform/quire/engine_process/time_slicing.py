"""Shares the device among several models: which one steps next, and how many tokens its step may have.

Each model has used some seconds of the device; the model that has used the least goes next. A model that wakes up
starts at the current virtual time, so idling earns no credit. A model runs three steps per slice unless the steps of
the others are short: two of three tokens then arrive without waiting for the other models, at the same long-term
share. While others wait, a step that takes longer than `max_step_s` lowers the model's token limit.
This is start-time fair queueing (Goyal, Vin & Cheng, 1996) with seconds for work; the caller supplies all times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

GROWTH = 2
"""A token limit is divided by this after a step that took too long, and multiplied by it after a short one."""

STEPS_PER_SLICE = 3
"""Steps in a row of a model that would otherwise wait long for each; fewer than half of its tokens then wait."""

SLOW_ROUND = 1.1
"""A round of all other models is long if it takes more than this times a step of the model itself."""

SMOOTHING = 0.2
"""Weight of the latest step in the moving average of a model's step time."""


@dataclass(slots=True)
class _ModelShare:
    min_tokens: int
    max_tokens: int
    used_s: float = 0.0
    step_s: float = 0.0
    limit: int | None = None


class TimeSlicer:
    """Divides the seconds of one device evenly among the models that have work."""

    def __init__(self, max_step_s: float = 0.04, first_limit: int = 512) -> None:
        """`first_limit`: tokens of a model's first step beside others, before its speed is known."""
        self._max_step_s, self._first_limit = max_step_s, first_limit
        self._shares: dict[str, _ModelShare] = {}
        self._idle: set[str] = set()
        self._current = ""
        self._steps_in_slice = 0
        self._virtual_s = 0.0  # seconds used by a model that always had its fair share

    def add(self, name: str, min_tokens: int, max_tokens: int) -> None:
        """Add a model; the limit of its steps stays between `min_tokens` and `max_tokens`."""
        self._shares[name] = _ModelShare(min_tokens, max(min_tokens, max_tokens))
        self._idle.add(name)

    def remove(self, name: str) -> None:
        self._shares.pop(name, None)
        self._idle.discard(name)

    def next(self, with_work: Iterable[str]) -> tuple[str, int | None] | None:
        """The model that steps now, and the maximum of tokens (None: no limit). None if no model has work."""
        names = list(with_work)
        if not names:
            return None
        for name in self._idle.intersection(names):
            self._shares[name].used_s = max(self._shares[name].used_s, self._virtual_s)
        self._idle = self._shares.keys() - set(names)
        name = self._pick(names)
        share = self._shares[name]
        self._virtual_s = max(self._virtual_s, share.used_s)
        if len(names) == 1:
            return name, None
        if share.limit is None:
            share.limit = min(max(self._first_limit, share.min_tokens), share.max_tokens)
        return name, share.limit

    def _pick(self, names: list[str]) -> str:
        if self._current in names and 0 < self._steps_in_slice < STEPS_PER_SLICE:
            others_s = sum(self._shares[n].step_s for n in names if n != self._current)
            if STEPS_PER_SLICE * others_s > SLOW_ROUND * self._shares[self._current].step_s:
                self._steps_in_slice += 1
                return self._current
        self._current = min(names, key=lambda n: self._shares[n].used_s)  # the first one on a tie
        self._steps_in_slice = 1
        return self._current

    def record(self, name: str, seconds: float, alone: bool) -> None:
        """Count a step that took `seconds`. alone: no other model had work, so the limit need not change."""
        share = self._shares[name]
        share.used_s += seconds
        share.step_s = seconds if not share.step_s else share.step_s + SMOOTHING * (seconds - share.step_s)
        if alone:
            self._virtual_s = max(self._virtual_s, share.used_s)
        elif share.limit is not None and seconds > self._max_step_s:
            share.limit = max(share.limit // GROWTH, share.min_tokens)
        elif share.limit is not None and seconds * GROWTH * GROWTH < self._max_step_s:
            share.limit = min(share.limit * GROWTH, share.max_tokens)
