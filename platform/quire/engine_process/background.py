"""How much of the background runs beside other requests (see `quire.types.request.BACKGROUND`).

While other requests of a model are answered, one of `EVERY` steps has tokens for the background: a step with one more
row takes up to a third longer, and one with fifty more rows not much longer than that, so that few steps with many
tokens delay streams less than many steps with few. When nothing else has run for `QUIET_S`, the background has whole
steps. Work in the background for a model without other requests, while another model has some, gets
`OTHER_MODELS_SHARE` of the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from quire.types import in_background

EVERY = 200
"""Of so many steps beside other requests one has tokens for the background: too few to change the 99th percentile of
the gaps between tokens."""

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


class BackgroundPacer:
    """Counts the requests of each model, and divides its steps between the background and the others."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._others: Counter[str] = Counter()
        self._behind: Counter[str] = Counter()
        self._num_steps: Counter[str] = Counter()  # beside other requests, since one had tokens for the background
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
            return given, burst if self._num_steps[model] >= EVERY - 1 else 0
        if self._others:
            return burst, 0
        return (short if self._clock() >= self._quiet_at else QUIET_TOKENS), 0

    def record(self, model: str, seconds: float) -> None:
        """Count a step of a model."""
        if model not in self._behind:
            return
        if model in self._others:
            self._num_steps[model] = (self._num_steps[model] + 1) % EVERY
        elif self._others:
            self._next_other_model = self._clock() + seconds / OTHER_MODELS_SHARE
