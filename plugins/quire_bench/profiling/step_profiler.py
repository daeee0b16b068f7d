"""Records what each step of an engine computed, and the seconds of each phase.

    plan ─▶ layout ─▶ forward ─▶ logits ─▶ sample ─▶ commit

The profiler wraps the methods at the borders of phases while it is on; the engine itself is unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quire.errors import QuireError
from quire.types import Plan, SeqDelta
from quire_bench.profiling.roofline import TokenSpan

if TYPE_CHECKING:
    from quire.engine.engine import Engine

PHASES = {
    "plan": "scheduling",
    "layout": "pages moved, rows laid out, buffers filled",
    "forward": "the model up to the last hidden states",
    "logits": "rows picked, head; the largest, where nothing else is asked for",
    "sample": "tokens chosen",
    "commit": "output",
}


@dataclass(frozen=True)
class TimedStep:
    """One step: what it computed, and seconds by phase."""

    spans: tuple[TokenSpan, ...]
    seconds: Mapping[str, float]

    @property
    def elapsed_s(self) -> float:
        """Duration of the step in seconds."""
        return sum(self.seconds.values())

    @property
    def num_tokens(self) -> int:
        return sum(span.length for span in self.spans)


@dataclass
class StepProfiler:
    """Profiles the steps of one engine; `clock` returns seconds."""

    engine: Engine
    clock: Callable[[], float] = time.perf_counter
    _spans: tuple[TokenSpan, ...] = ()
    _seconds: dict[str, float] = field(default_factory=dict)
    _phase: str = "plan"
    _since: float = 0.0

    def step(self) -> tuple[TimedStep, list[SeqDelta]]:
        """Runs one step of the engine. Only valid within `on`."""
        self._settle()
        self._spans, self._seconds, self._phase, self._since = (), dict.fromkeys(PHASES, 0.0), "plan", self.clock()
        deltas = self.engine.step()
        self._enter("plan")
        return TimedStep(self._spans, dict(self._seconds)), deltas

    @contextmanager
    def on(self) -> Iterator[None]:
        """Context manager that wraps the phases of the engine."""
        scheduler, runner = self.engine._scheduler, self.engine._runner
        model = self.engine.loaded.module
        with ExitStack() as stack:
            for owner, name, phase in (
                (scheduler, "plan", "plan"),
                (runner, "launch", "layout"),
                (runner._sampler, "sample", "sample"),
                (runner._sampler, "from_argmax", "sample"),
                (scheduler, "commit", "commit"),
            ):
                stack.enter_context(self._entering(owner, name, phase))
            stack.callback(setattr, runner, "max_in_flight", runner.max_in_flight)
            runner.max_in_flight = 1  # or phases of two steps would mix
            stack.callback(model.register_forward_pre_hook(self._before_model).remove)
            stack.callback(model.register_forward_hook(self._after_model).remove)
            yield

    @contextmanager
    def _entering(self, owner: Any, name: str, phase: str) -> Iterator[None]:
        inner = getattr(owner, name)

        def entering(*args: Any, **kwargs: Any) -> Any:
            self._enter(phase)
            result = inner(*args, **kwargs)
            if isinstance(result, Plan):
                self._spans = tuple(TokenSpan(c.start, len(c.token_ids), c.samples) for c in result.chunks)
            return result

        setattr(owner, name, entering)
        try:
            yield
        finally:
            delattr(owner, name)

    def _before_model(self, *_: Any) -> None:
        if self._phase == "logits":  # from an earlier call of the model in this step: rows are built again
            self._phase = "layout"
        self._enter("forward")

    def _after_model(self, *_: Any) -> None:
        self._enter("logits")

    def _enter(self, phase: str) -> None:
        """Adds the time since the last border to the phase that ends here."""
        self._settle()
        now = self.clock()
        self._seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now

    def _settle(self) -> None:
        if self.engine.loaded.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.engine.loaded.device)


@dataclass(frozen=True)
class ProfiledRun:
    """A workload from the first request to the last token. elapsed_s includes the time between steps."""

    steps: Sequence[TimedStep]
    elapsed_s: float

    @property
    def computing(self) -> list[TimedStep]:
        """The steps that computed tokens; others only remove ended seqs."""
        return [step for step in self.steps if step.spans]


def watch_jobs(engine: Engine, submit: Callable[[], None]) -> ProfiledRun:
    """Submits requests and steps until all are done. Raises QuireError if a request failed."""
    watch, steps = StepProfiler(engine), []
    with watch.on():
        start = time.perf_counter()
        submit()
        while engine.has_work:
            step, deltas = watch.step()
            steps.append(step)
            for delta in deltas:
                if delta.error is not None:
                    raise QuireError(f"A request failed: {delta.error[1]}")
            assert not step.spans or step.seconds["forward"], "a step that computes calls the model"
        return ProfiledRun(steps, time.perf_counter() - start)
