"""Shares the device among several models: which one steps next, and how many tokens its step may have.

A step delays all streams, those of its own model too. While there are any, its tokens are limited to what the model is
expected to compute within `max_step_s`, by the speed of its latest long steps, but not below `MIN_TOKENS` beside a
token for each stream: with fewer rows the products of matrices would take as long. Beside streams of other models,
which get nothing of such a step, it is limited to some of their steps, and to at least `MIN_BESIDE_OTHERS` tokens.

Each model has used some seconds of the device; the model that has used the least goes next. A model that wakes up
starts at the current virtual time, so idling earns no credit. A model runs three steps per slice unless the steps of
the others are short, or a step has a part of a prompt: two of three tokens then arrive without waiting for the other
models, at the same long-term share. Among three or more models slices are shorter. Two slices in a row are for a model
that is more than one behind: streams of the others would wait twice as long. While a model is being loaded, which makes
steps longer, slices have one step, and steps with prompts are half as long. This is start-time fair queueing (Goyal,
Vin & Cheng, 1996) with seconds for work; the caller supplies all times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MIN_TOKENS = 128
"""Tokens of prompts that a limited step may have however slow the model is."""

MIN_BESIDE_OTHERS = 32
"""The same beside streams of other models. At least so many rows make a product of matrices a matter of arithmetic, so
that prompts in such steps take little longer."""

STEPS_DELAYED, MIN_DELAY_S = 3, 0.012
"""A step beside streams of other models may take so many of their steps, or so many seconds."""

STEPS_PER_SLICE = 3
"""Steps in a row of a model that would otherwise wait long for each; fewer than half of its tokens then wait."""

STEPS_WAITED = 4
"""Slices have more than one step only if two steps of a model then have at most so many of other models between them:
a token of a stream among several models would wait very long otherwise."""

MAX_CHARGED = 2
"""A step without prompts counts at most as so many average ones of its model. One that other processes or a load hold
up would otherwise delay its streams a second time: the other models would catch up."""

SLOW_ROUND = 1.1
"""A round of all other models is long if it takes more than this times a step of the model itself."""

SMOOTHING = 0.2
"""Weight of the latest step in the moving averages of a model's step time, and of its speed."""


@dataclass(slots=True)
class _ModelShare:
    """Of one model. token_s: seconds for a token in steps of at least `MIN_TOKENS`; 0 before the first such step.
    short_token_s: the same in steps of fewer tokens, at least `MIN_BESIDE_OTHERS`.
    """

    max_tokens: int
    used_s: float = 0.0
    step_s: float = 0.0
    token_s: float = 0.0
    short_token_s: float = 0.0

    def tokens_in(self, seconds: float, token_s: float, least: int, unknown: int) -> int:
        """Tokens of a step of so many seconds. unknown: those if the speed is not known."""
        expected = int(seconds / token_s) if token_s else unknown
        return min(self.max_tokens, max(expected, least))


class TimeSlicer:
    """Divides the seconds of one device evenly among the models that have work."""

    def __init__(self, max_step_s: float = 0.04, first_limit: int = 512) -> None:
        """first_limit: tokens of a step before the model's speed is known."""
        self._max_step_s, self._first_limit = max_step_s, first_limit
        self._shares: dict[str, _ModelShare] = {}
        self._idle: set[str] = set()
        self._current = ""
        self._steps_in_slice = 0
        self._beside_load = False
        self._virtual_s = 0.0  # seconds used by a model that always had its fair share

    def add(self, name: str, max_tokens: int) -> None:
        """Add a model, the steps of which have at most `max_tokens` tokens."""
        self._shares[name] = _ModelShare(max_tokens)
        self._idle.add(name)

    def remove(self, name: str) -> None:
        self._shares.pop(name, None)
        self._idle.discard(name)

    def next(self, with_work: Iterable[str], beside_load: bool = False) -> str | None:
        """The model that steps now; None if no model has work. beside_load: whether a model is being loaded."""
        names, self._beside_load = list(with_work), beside_load
        if not names:
            return None
        for name in self._idle.intersection(names):
            self._shares[name].used_s = max(self._shares[name].used_s, self._virtual_s)
        self._idle = self._shares.keys() - set(names)
        name = self._pick(names)
        self._virtual_s = max(self._virtual_s, self._shares[name].used_s)
        return name

    def limit(self, name: str, num_generating: int, others: Sequence[str] = ()) -> int:
        """The most tokens of a step that delays streams.

        num_generating: streams of the model itself. others: the other models that have streams.
        """
        share = self._shares[name]
        if not others:
            return share.tokens_in(self._max_step_s, share.token_s, MIN_TOKENS + num_generating, self._first_limit)
        delayed_s = max(MIN_DELAY_S, STEPS_DELAYED * min(self._shares[other].step_s for other in others))
        token_s = min(filter(None, (share.token_s, share.short_token_s)), default=0.0)
        parts = 2 if self._beside_load else 1
        least = MIN_BESIDE_OTHERS // parts + num_generating
        return share.tokens_in(min(self._max_step_s, delayed_s / parts), token_s, least, 0)

    def _pick(self, names: list[str]) -> str:
        fitting = 1 if self._beside_load else STEPS_WAITED // max(1, len(names) - 1)
        steps = max(1, min(STEPS_PER_SLICE, fitting))
        if self._current in names and 0 < self._steps_in_slice < steps:
            others_s = sum(self._shares[n].step_s for n in names if n != self._current)
            if STEPS_PER_SLICE * others_s > SLOW_ROUND * self._shares[self._current].step_s:
                self._steps_in_slice += 1
                return self._current

        def turn(name: str) -> float:
            share = self._shares[name]
            return share.used_s + (steps * share.step_s if name == self._current else 0.0)

        self._current = min(names, key=turn)  # the first one on a tie
        self._steps_in_slice = 1
        return self._current

    def record(self, name: str, seconds: float, num_tokens: int, alone: bool, num_generating: int = 0) -> None:
        """Count a step of `num_tokens` that took `seconds`. alone: no other model had work."""
        share = self._shares[name]
        is_usual = num_tokens <= num_generating and share.step_s > 0
        share.used_s += min(seconds, MAX_CHARGED * share.step_s) if is_usual else seconds
        share.step_s = _averaged(share.step_s, seconds)
        if num_tokens >= min(MIN_TOKENS, share.max_tokens):
            share.token_s = _averaged(share.token_s, seconds / num_tokens)
        elif num_tokens >= MIN_BESIDE_OTHERS:
            share.short_token_s = _averaged(share.short_token_s, seconds / num_tokens)
        if num_tokens >= MIN_BESIDE_OTHERS + num_generating:
            self._steps_in_slice = STEPS_PER_SLICE
        if alone:
            self._virtual_s = max(self._virtual_s, share.used_s)


def _averaged(average: float, latest: float) -> float:
    return latest if not average else average + SMOOTHING * (latest - average)
