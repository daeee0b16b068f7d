"""How much of the background runs beside other requests (see `quire.types.request.BACKGROUND`).

While other requests of a model are answered, most steps have a few tokens for the background: as many as make them not
longer than `MAX_SLOWDOWN` times the steps without, which is measured; none if one token is too many, as on CPUs, where
a row more may take a third longer. One of `EVERY` steps has many tokens, which delays streams less than as many tokens
in steps of their own. When nothing else has run for `QUIET_S`, the background has whole steps. Work in the background
for a model without other requests, while another model has some, gets `OTHER_MODELS_SHARE` of the time.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from quire.types import in_background

MAX_SLOWDOWN = 1.1
"""A step with few tokens for the background may take so many times the time of a step without."""

CYCLE, CLEAN = 12, 3
"""Steps after which the number of tokens may change, and the steps at their end that have none."""

MAX_BESIDE = 64
"""The most tokens for the background in such a step."""

EVERY = 200
"""Of so many steps one has many tokens for the background: too few to change the 99th percentile of the gaps between
tokens."""

TRY_EVERY, NUM_TRIED = 4 * EVERY, 3
"""While no step has few tokens, one of so many has one token, to see whether that is still too slow; what so many such
steps took decides."""

SHORTER = 4
"""Such a step has this fraction of the tokens that a step with long prompts may have: a request that arrives meanwhile
waits for its end."""

MIN_TOKENS = 32
"""The least that such a step may have, however slow the model is."""

QUIET_S = 0.25
"""After the last other request, seconds until the background has whole steps: clients often send the next one soon."""

QUIET_TOKENS = 8
"""Tokens of a step for the background in these seconds."""

OTHER_MODELS_SHARE = 0.005
"""Share of the time of models whose work is all in the background while other models answer requests: a step of theirs
delays all streams, so such steps must be rare among the others."""


@dataclass(slots=True)
class _BesideOthers:
    """The steps of one model beside other requests. tokens: few tokens, for most steps. position: of the next step."""

    tokens: int = 1
    position: int = 0
    with_s: deque[float] = field(default_factory=lambda: deque(maxlen=2 * (CYCLE - CLEAN)))
    clean_s: deque[float] = field(default_factory=lambda: deque(maxlen=2 * CLEAN))

    @property
    def is_burst(self) -> bool:
        """Whether the next step has many tokens."""
        return self.position % EVERY == EVERY - 1

    @property
    def few(self) -> int:
        """Tokens of the next step, unless it is to have many."""
        if not self.tokens:
            return int(self.position == TRY_EVERY // 2)
        return self.tokens if self.position % CYCLE < CYCLE - CLEAN else 0

    def record(self, seconds: float) -> None:
        """Count a step that took `seconds`."""
        if not self.is_burst:
            (self.with_s if self.few else self.clean_s).append(seconds)
        self.position = (self.position + 1) % TRY_EVERY
        if self.position % CYCLE == 0 and len(self.with_s) >= NUM_TRIED and self.clean_s:
            self._adjust(median(self.with_s) > MAX_SLOWDOWN * median(self.clean_s))

    def _adjust(self, is_slow: bool) -> None:
        self.tokens = self.tokens * 3 // 4 if is_slow else min(MAX_BESIDE, self.tokens + 1)
        if not self.tokens:
            self.with_s.clear()


class BackgroundPacer:
    """Counts the requests of each model, and divides its steps between the background and the others."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._others: Counter[str] = Counter()
        self._behind: Counter[str] = Counter()
        self._beside: defaultdict[str, _BesideOthers] = defaultdict(_BesideOthers)
        self._quiet_at = 0.0
        self._next_other_model = 0.0

    def begin(self, model: str, client: str) -> None:
        """Count a request of a client."""
        (self._behind if in_background(client) else self._others)[model] += 1

    def end(self, model: str, client: str) -> None:
        """Forget a request that was counted."""
        counts = self._behind if in_background(client) else self._others
        counts[model] -= 1
        if not counts[model]:
            del counts[model]
        if not in_background(client):
            self._quiet_at = self._clock() + QUIET_S

    def may_step(self, models: Sequence[str]) -> list[str]:
        """Those of the models with work that may have the next step."""
        others = [model for model in models if model not in self._behind or model in self._others]
        if not others or self._clock() >= self._next_other_model:
            return list(models)
        return others

    def limits(self, model: str, given: int | None, short: int) -> tuple[int | None, int]:
        """The most tokens of the next step of a model, and the most of them for the background beside other requests.

        given: what a step without background may have, None: as many as the model may. short: tokens of a step that
        delays a request that comes meanwhile by little.
        """
        if model not in self._behind:
            return given, 0
        burst = max(MIN_TOKENS, short // SHORTER)
        if model in self._others:
            beside = self._beside[model]
            return given, burst if beside.is_burst else beside.few
        if self._others:
            return burst, 0
        return (short if self._clock() >= self._quiet_at else QUIET_TOKENS), 0

    def record(self, model: str, seconds: float) -> None:
        """Count a step of a model."""
        if model not in self._behind:
            return
        if model in self._others:
            self._beside[model].record(seconds)
        elif self._others:
            self._next_other_model = self._clock() + seconds / OTHER_MODELS_SHARE
