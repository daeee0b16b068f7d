"""StepWatch: says of every step of an engine what it computed, and how many seconds each phase of it took.

    plan ─▶ layout ─▶ forward ─▶ logits ─▶ sample ─▶ commit

The engine runs as it always does; the watch only stands at the borders of its phases while it is on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quire.commands.bench.roof import Span
from quire.errors import QuireError
from quire.types import Delta, Plan

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
class Step:
    """One step: what it computed, and seconds by phase."""

    spans: tuple[Span, ...]
    seconds: Mapping[str, float]

    @property
    def elapsed_s(self) -> float:
        """Seconds of the whole step."""
        return sum(self.seconds.values())

    @property
    def num_tokens(self) -> int:
        """Tokens computed."""
        return sum(span.length for span in self.spans)


@dataclass
class StepWatch:
    """Watches the steps of one engine; `clock` gives seconds."""

    engine: Engine
    clock: Callable[[], float] = time.perf_counter
    _spans: tuple[Span, ...] = ()
    _seconds: dict[str, float] = field(default_factory=dict)
    _phase: str = "plan"
    _since: float = 0.0

    def step(self) -> tuple[Step, list[Delta]]:
        """Let the engine make a step. Only within `on`."""
        self._settle()
        self._spans, self._seconds, self._phase, self._since = (), dict.fromkeys(PHASES, 0.0), "plan", self.clock()
        deltas = self.engine.step()
        self._enter("plan")
        return Step(self._spans, dict(self._seconds)), deltas

    @contextmanager
    def on(self) -> Iterator[None]:
        """Stand at the borders of the engine's phases."""
        scheduler, runner = self.engine._scheduler, self.engine._runner
        model = self.engine.loaded.module
        with ExitStack() as stack:
            for owner, name, phase in (
                (scheduler, "plan", "plan"),
                (runner, "run", "layout"),
                (runner._sampler, "sample", "sample"),
                (runner._sampler, "take", "sample"),
                (scheduler, "commit", "commit"),
            ):
                stack.enter_context(self._entering(owner, name, phase))
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
                self._spans = tuple(Span(c.start, len(c.token_ids), c.samples) for c in result.chunks)
            return result

        setattr(owner, name, entering)
        try:
            yield
        finally:
            delattr(owner, name)

    def _before_model(self, *_: Any) -> None:
        if self._phase == "logits":  # of an earlier call of the model in this step: rows are laid out again
            self._phase = "layout"
        self._enter("forward")

    def _after_model(self, *_: Any) -> None:
        self._enter("logits")

    def _enter(self, phase: str) -> None:
        """The time since the last border belongs to the phase that ends here."""
        self._settle()
        now = self.clock()
        self._seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now

    def _settle(self) -> None:
        if self.engine.loaded.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.engine.loaded.device)


@dataclass(frozen=True)
class WatchedRun:
    """A workload from the first request to the last token; elapsed_s: with what happens between steps."""

    steps: Sequence[Step]
    elapsed_s: float

    @property
    def computing(self) -> list[Step]:
        """The steps that computed something; others only forget ended seqs."""
        return [step for step in self.steps if step.spans]


def watch_jobs(engine: Engine, submit: Callable[[], None]) -> WatchedRun:
    """Submit requests and step until all are done. Raises QuireError: a request failed."""
    watch, steps = StepWatch(engine), []
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
        return WatchedRun(steps, time.perf_counter() - start)
