"""How much of the background runs beside other requests (see `quire.types.request.BACKGROUND`).

While other requests are answered, a step has a few tokens for the background at most: as many as make the model's steps
not longer than `MAX_SLOWDOWN` times the steps without. This is measured: of `CYCLE` steps the last `CLEAN` have none.
When nothing else has run for `QUIET_S`, the background has whole steps. Work in the background for a model whose
requests are not answered now, while another model's are, gets `OTHER_MODELS_SHARE` of the time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from quire.types import in_background

MAX_SLOWDOWN = 1.1
"""A step with tokens for the background may take so many times the time of a step without."""

CYCLE, CLEAN = 12, 3
"""Steps of a cycle, and the steps at its end that have no tokens for the background."""

MAX_BESIDE = 64
"""The most tokens for the background in a step beside other requests."""

QUIET_S = 0.25
"""After the last other request, seconds until the background has whole steps: clients often send the next one soon."""

OTHER_MODELS_SHARE = 0.005
"""Share of the time of models whose work is all in the background while other models answer requests: a step of theirs
delays all streams, so such steps must be rare among the others."""


@dataclass(slots=True)
class _Measured:
    """The steps of one model that has other requests. tokens: for the background in a step."""

    tokens: int = 1
    position: int = 0
    beside_s: deque[float] = field(default_factory=lambda: deque(maxlen=2 * (CYCLE - CLEAN)))
    clean_s: deque[float] = field(default_factory=lambda: deque(maxlen=2 * CLEAN))

    @property
    def is_clean(self) -> bool:
        return self.position >= CYCLE - CLEAN

    def record(self, seconds: float) -> None:
        """Count a step; at the end of a cycle, change `tokens`."""
        (self.clean_s if self.is_clean else self.beside_s).append(seconds)
        self.position = (self.position + 1) % CYCLE
        if self.position == 0:
            slow = median(self.beside_s) > MAX_SLOWDOWN * median(self.clean_s)
            self.tokens = max(1, self.tokens * 3 // 4) if slow else min(MAX_BESIDE, self.tokens + 1)


class BackgroundPacer:
    """Counts the requests of each model, and divides its steps between the background and the others."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._others: Counter[str] = Counter()
        self._behind: Counter[str] = Counter()
        self._measured: dict[str, _Measured] = {}
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

    def has_behind(self, model: str) -> bool:
        """Whether a model has requests in the background."""
        return model in self._behind

    def max_tokens(self, model: str, given: int | None, short: int) -> int | None:
        """The most tokens of the next step of a model. given: what others of its requests may have, None: as many as
        the model may. short: tokens of a step that delays a request that comes meanwhile by little.
        """
        if model in self._others:
            return given
        return short if not self._others and self._clock() >= self._quiet_at else self._of(model).tokens

    def max_beside(self, model: str) -> int:
        """The most tokens for the background in the next step, beside other requests of the model."""
        measured = self._of(model)
        return 0 if measured.is_clean else measured.tokens

    def record(self, model: str, seconds: float) -> None:
        """Count a step of a model."""
        if model in self._others and model in self._behind:
            self._of(model).record(seconds)
        elif model in self._behind and self._others:
            self._next_other_model = self._clock() + seconds / OTHER_MODELS_SHARE

    def _of(self, model: str) -> _Measured:
        return self._measured.setdefault(model, _Measured())
