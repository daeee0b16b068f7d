"""Compiles the constraints of requests in worker threads, with the back end that fits, and caches the grammars.

A grammar stays cached while requests use it and, within limits, longer. Grammar languages are known to back ends only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from quire.engine.structured.compilers import HOOK, GrammarCompilers
from quire.engine.structured.constraint_tracker import Constraint, ConstraintTracker, MaskCost
from quire.engine.structured.deadline import Deadline
from quire.engine.structured.start_trigger import StartTrigger
from quire.errors import BadRequest, ConfigError, Overloaded, PluginFailed, QuireError, UnsupportedConstraint
from quire.hooks.call_stats import call_plugin
from quire.isolation.idle_thread import run_when_idle
from quire.params.pooling import PoolingParams
from quire.params.structured import PARAM, StructuredSpec
from quire.records import Context, Grammar, GrammarBackend, Registry
from quire.types import Params, Request

MAX_KEPT = 256
"""Limit of cached grammars, and of cached start triggers."""
MIN_BYTES = 256 << 10
"""Assumed smallest size of a compiled grammar that does not report its size."""
BYTES_PER_CHARACTER = 256
"""Its assumed size for each character of its source."""
GRACE_S = 0.5
"""Time after the deadline in which a worker can still report the timeout itself."""
WORKERS = 4
"""Number of worker threads."""
AUTO = "auto"
"""The setting that lets any back end compile."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar, the plugin that it comes from, and the cost of its masks so far."""

    grammar: Grammar
    plugin: str
    cost: MaskCost = field(default_factory=MaskCost)


@dataclass(frozen=True, slots=True)
class _Job:
    """A grammar that is being compiled, or was. deadline: when requests that wait for it fail."""

    future: Future[CompiledGrammar]
    deadline: Deadline

    @property
    def is_retryable(self) -> bool:
        """Whether it failed for a reason other than the constraint itself."""
        return (
            self.future.done()
            and self.future.exception() is not None
            and not isinstance(self.future.exception(), BadRequest)
        )


class Grammars:
    """Compiles constraints in worker threads; equal constraints are compiled once.

    backend: the back end for requests that name none, or `AUTO`. timeout_s: limit of compiling, from when a request
    needs the grammar. cache_bytes: memory for compiled grammars, in addition to those in use.
    """

    def __init__(
        self,
        registry: Registry,
        context: Callable[[str], Context],
        constraints: ConstraintTracker,
        backend: str = AUTO,
        timeout_s: float = 10.0,
        cache_bytes: int = 256 << 20,
    ) -> None:
        self.constraints = constraints
        self._registry = registry
        self._backends: dict[str, GrammarBackend] = dict(registry.by_hook(HOOK))
        if backend != AUTO and backend not in self._backends:
            known = ", ".join([AUTO, *sorted(self._backends)])
            raise ConfigError(f"--structured-outputs-backend must be one of {known}; got {backend!r:.80}.")
        self._default = backend
        self._timeout_s, self._cache_bytes = timeout_s, cache_bytes
        self._compilers = GrammarCompilers(registry, context)
        self._jobs: OrderedDict[StructuredSpec, _Job] = OrderedDict()
        self._triggers: OrderedDict[str, Future[StartTrigger]] = OrderedDict()
        self._pending: set[Future[Any]] = set()
        self._workers: ThreadPoolExecutor | None = None

    def candidate_backends(self, asked: StructuredSpec) -> list[GrammarBackend]:
        """The back ends that may compile it, in order of preference. Raises BadRequest if there is none."""
        name = asked.backend or self._default
        if name != AUTO and name not in self._backends:
            known = ", ".join([AUTO, *sorted(self._backends)])
            raise BadRequest(f"There is no structured-output back end {name!r:.80}; there are {known}.", PARAM)
        offered = [each for each in self._backends.values() if name in (AUTO, each.name)]
        candidates = [each for each in offered if asked.kind in each.kinds]
        if not candidates:
            known = ", ".join(sorted({kind for each in offered for kind in each.kinds})) or "none"
            subject = "No loaded plugin" if name == AUTO else f"The back end {name!r} is not one that"
            raise BadRequest(f"{subject} constrains the output by {asked.kind!r}; kinds known: {known}.", PARAM)
        return sorted(candidates, key=lambda each: -each.priority)

    def prepare(self) -> None:
        """Build the back end that most requests will use, which is slow for a large vocabulary."""
        known = self._backends.values()
        first = self._backends.get(self._default) or max(known, key=lambda each: each.priority, default=None)
        if first is not None:
            plugin = self._registry.plugin_of(HOOK, first.name)
            with suppress(QuireError):  # the request that needs it will fail with the error
                call_plugin(self._registry, plugin, self._compilers.prepare, first)

    def submit(self, params: Params) -> None:
        """Start compiling the constraint of a request, if it has one. Raises BadRequest for an unknown kind."""
        if not isinstance(params, PoolingParams) and params.structured is not None:
            with _with_param(params.structured.param):
                key = _key(params.structured)
                found = self._jobs.get(key)
                if found is not None and found.is_retryable:
                    del self._jobs[key]
                self._jobs_for(params.structured)

    def _jobs_for(self, asked: StructuredSpec) -> tuple[_Job, Future[StartTrigger] | None]:
        """The jobs for a constraint's grammar and trigger; starts those that are not cached."""
        return self._job(_key(asked)), None if asked.after is None else self._trigger(asked.after)

    def _job(self, key: StructuredSpec) -> _Job:
        if key not in self._jobs:
            candidates, deadline = self.candidate_backends(key), Deadline(self._timeout_s)
            self._jobs[key] = _Job(self._submit(self._compile, candidates, key, deadline), deadline)
            self._evict_grammars()
        self._jobs.move_to_end(key)
        return self._jobs[key]

    def _evict_grammars(self) -> None:
        """Evict the least recently used grammars until the rest is within the limits."""
        sizes = {key: self._num_bytes(key, job) for key, job in self._jobs.items()}
        total = sum(sizes.values())
        for key, size in sizes.items():
            if len(self._jobs) <= MAX_KEPT and total <= self._cache_bytes:
                return
            if self._jobs[key].future.done():
                del self._jobs[key]
                total -= size

    def _num_bytes(self, key: StructuredSpec, job: _Job) -> int:
        """The size of a grammar in memory: what it reports, or an estimate; 0 before it is compiled."""
        if not job.future.done() or job.future.exception() is not None:
            return 0
        compiled = job.future.result()
        with suppress(QuireError):
            reported = call_plugin(self._registry, compiled.plugin, getattr, compiled.grammar, "num_bytes", None)
            if isinstance(reported, int):
                return reported
        return MIN_BYTES + BYTES_PER_CHARACTER * len(key.source)

    def _trigger(self, text: str) -> Future[StartTrigger]:
        if text not in self._triggers:
            self._triggers[text] = self._submit(self.constraints.make_trigger, text)
            self._evict_triggers()
        self._triggers.move_to_end(text)
        return self._triggers[text]

    def _evict_triggers(self) -> None:
        """Evict the least recently used triggers until the rest is within the limit."""
        while len(self._triggers) > MAX_KEPT:
            oldest = next((text for text, future in self._triggers.items() if future.done()), None)
            if oldest is None:
                return
            del self._triggers[oldest]

    def _submit(self, work: Callable[..., _Result], *args: Any) -> Future[_Result]:
        if self._workers is None:
            self._workers = ThreadPoolExecutor(WORKERS, "quire-grammar", initializer=run_when_idle)
        future = self._workers.submit(work, *args)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def _compile(
        self, candidates: Sequence[GrammarBackend], asked: StructuredSpec, deadline: Deadline
    ) -> CompiledGrammar:
        """Compile with the first back end that can. Raises BadRequest with the reason of each if none can."""
        reasons: dict[str, UnsupportedConstraint] = {}
        for backend in candidates:
            if deadline.has_passed():
                break
            plugin = self._registry.plugin_of(HOOK, backend.name)
            try:
                grammar = call_plugin(self._registry, plugin, self._compilers.compile, backend, asked, deadline)
            except UnsupportedConstraint as error:
                reasons[backend.name] = error
            else:
                return CompiledGrammar(grammar, plugin)
        if not reasons:
            raise _queue_timeout(self._timeout_s)
        param = next((error.param for error in reasons.values() if error.param is not None), PARAM)
        listed = " ".join(f"{name}: {error.message}" for name, error in reasons.items())
        raise BadRequest(listed if len(reasons) == 1 else f"No structured-output back end can do this. {listed}", param)

    def is_ready(self, asked: StructuredSpec) -> bool:
        """Whether a constraint is compiled. Raises the error if compiling failed.

        A constraint that was evicted is compiled again.
        """
        with _with_param(asked.param):
            job, trigger = self._jobs_for(asked)
            if job.future.done():
                _result(job.future)
            elif job.deadline.has_passed(GRACE_S):
                raise self._timeout_error(job)
            if trigger is not None and trigger.done():
                _result(trigger)
        return job.future.done() and (trigger is None or trigger.done())

    def num_compiling(self, requests: Iterable[Request]) -> int:
        """How many of these requests wait for a grammar."""
        if not self._pending:
            return 0
        asked = [one.params.structured for one in requests if not isinstance(one.params, PoolingParams)]
        jobs = [self._jobs.get(_key(structured)) for structured in asked if structured is not None]
        return sum(job is not None and not job.future.done() for job in jobs)

    def _timeout_error(self, job: _Job) -> QuireError:
        if job.future.running():
            return BadRequest(f"The constraint was not compiled within {self._timeout_s:g} s.", PARAM)
        return _queue_timeout(self._timeout_s)

    def start(self, asked: StructuredSpec, output_ids: Sequence[int]) -> Constraint:
        """A constraint that has accepted `output_ids`. Waits for the grammar. Raises QuireError if that failed."""
        with _with_param(asked.param):
            job, future = self._jobs_for(asked)
            compiled = _result(job.future)
            trigger = None if future is None else _result(future)
        grammar, cost = compiled.grammar, compiled.cost
        return self.constraints.start(compiled.plugin, grammar, output_ids, trigger, cost, asked.param)

    def wait_for_any(self, seconds: float) -> None:
        """Wait until a grammar is compiled, at most `seconds`. For an idle step loop."""
        pending = list(self._pending)
        if pending:
            wait(pending, timeout=seconds, return_when="FIRST_COMPLETED")

    def close(self) -> None:
        if self._workers is not None:
            self._workers.shutdown(wait=False, cancel_futures=True)
        self._compilers.close()
        self.constraints.close()


@contextmanager
def _with_param(param: str) -> Iterator[None]:
    """Let a BadRequest that names no field, or the default one, name the field of the request."""
    try:
        yield
    except BadRequest as error:
        if error.param not in (None, PARAM):
            raise
        raise BadRequest(error.message, param) from error


def _key(asked: StructuredSpec) -> StructuredSpec:
    """The part of a constraint that is compiled. Cheap: every step calls it for every waiting request."""
    return asked if asked.after is None else replace(asked, after=None)


def _queue_timeout(timeout_s: float) -> Overloaded:
    return Overloaded(f"Too many grammars are being compiled: this one was not started in time ({timeout_s:g} s).")


def _result(future: Future[_Result]) -> _Result:
    """The result of a job. Raises QuireError for every error."""
    try:
        return future.result()
    except QuireError:
        raise
    except Exception as error:
        raise PluginFailed(f"A grammar could not be compiled: {type(error).__name__}: {error}") from error
