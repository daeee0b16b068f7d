"""Whose turn it is: which of several models steps next, and how many tokens its step may have.

Each model has used some seconds of the device; the one that has used least goes next. One that was idle
begins where those at work stand, so that idleness earns no credit. A model takes three steps in a row unless
the others are quick: taking turns one by one, nearly each of its tokens would wait for all the others, while so
two of three come as quickly as if it were alone, at the same share. While others wait, steps are given fewer
tokens if they take longer than `patience_s`. It knows no engines; times come from outside.
This is start-time fair queueing (Goyal, Vin & Cheng, 1996) with seconds for work.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

GROWTH = 2
"""A limit halves after a step that took too long, and doubles after one well under."""

RUN = 3
"""Steps in a row of a model that would otherwise wait long for each; fewer than half of its tokens then wait."""

LONG = 1.1
"""A turn of all the others is long if it takes more than this times one's own step."""

SMOOTHING = 0.2
"""Weight of the latest step in the typical time of a step."""


@dataclass(slots=True)
class _Share:
    least: int
    most: int
    used_s: float = 0.0
    step_s: float = 0.0
    limit: int | None = None


class Turns:
    """Shares the seconds of one device evenly among models that have work."""

    def __init__(self, patience_s: float = 0.04, first_limit: int = 512) -> None:
        """`first_limit`: tokens of a model's first step beside others, before its speed is known."""
        self._patience_s, self._first_limit = patience_s, first_limit
        self._shares: dict[str, _Share] = {}
        self._idle: set[str] = set()
        self._turn = ""
        self._run = 0
        self._now_s = 0.0  # how much a model has used that always had its fair share

    def join(self, name: str, least: int, most: int) -> None:
        """A model may want turns from now on; limits of its steps stay from `least` to `most` tokens."""
        self._shares[name] = _Share(least, max(least, most))
        self._idle.add(name)

    def leave(self, name: str) -> None:
        """The model is gone."""
        self._shares.pop(name, None)
        self._idle.discard(name)

    def next(self, with_work: Iterable[str]) -> tuple[str, int | None] | None:
        """The model that steps now and the most tokens of its step (None: as it likes); None without work."""
        names = list(with_work)
        if not names:
            return None
        for name in self._idle.intersection(names):
            self._shares[name].used_s = max(self._shares[name].used_s, self._now_s)
        self._idle = self._shares.keys() - set(names)
        name = self._pick(names)
        share = self._shares[name]
        self._now_s = max(self._now_s, share.used_s)
        if len(names) == 1:
            return name, None
        if share.limit is None:
            share.limit = min(max(self._first_limit, share.least), share.most)
        return name, share.limit

    def _pick(self, names: list[str]) -> str:
        if self._turn in names and 0 < self._run < RUN:
            others_s = sum(self._shares[n].step_s for n in names if n != self._turn)
            if RUN * others_s > LONG * self._shares[self._turn].step_s:
                self._run += 1
                return self._turn
        self._turn = min(names, key=lambda n: self._shares[n].used_s)  # the earlier one on a tie
        self._run = 1
        return self._turn

    def took(self, name: str, seconds: float, alone: bool) -> None:
        """A step of `seconds` ended. `alone`: nobody else had work, so it cost nobody anything."""
        share = self._shares[name]
        share.used_s += seconds
        share.step_s = seconds if not share.step_s else share.step_s + SMOOTHING * (seconds - share.step_s)
        if alone:
            self._now_s = max(self._now_s, share.used_s)
        elif share.limit is not None and seconds > self._patience_s:
            share.limit = max(share.limit // GROWTH, share.least)
        elif share.limit is not None and seconds * GROWTH * GROWTH < self._patience_s:
            share.limit = min(share.limit * GROWTH, share.most)
