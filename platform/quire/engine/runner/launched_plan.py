"""A plan that the runner has begun to compute."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

from quire.types import Plan, StepResult


@dataclass(slots=True, eq=False, kw_only=True)
class LaunchedPlan:
    """What `ModelRunner.launch` returns. LaunchedPlan plans are computed, and finished, in the order of their launch.

    result: None until it is known. error: what the launch raised. began_s: when it began, by `perf_counter`.
    """

    plan: Plan
    result: StepResult | None = None
    error: Exception | None = None
    began_s: float = field(default_factory=perf_counter)

    @property
    def is_pending(self) -> bool:
        """Whether the device is still computing it, as far as the host knows."""
        return self.result is None and self.error is None
