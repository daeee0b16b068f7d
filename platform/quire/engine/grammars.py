"""Grammars: constraints on the output, compiled beside the step loop by the back end that fits, and kept.

A compiled grammar is kept while requests use it, and some longer. It knows no grammar language and no seq:
back ends are plugins, and whoever asks says when a request needs one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from quire.counting import call_plugin
from quire.engine.compiling import HOOK, Compilers
from quire.engine.constraints import Constraint, Constraints, Cost
from quire.engine.deadline import Deadline
from quire.engine.openings import Opening
from quire.errors import BadRequest, CannotConstrain, ConfigError, Overloaded, PluginFailed, QuireError
from quire.idle_thread import run_when_idle
from quire.pooling import PoolingParams
from quire.records import Context, Grammar, GrammarBackend, Registry
from quire.structured import PARAM, Structured
from quire.types import Params, Request

MAX_KEPT = 256
"""Compiled grammars kept for requests to come, and openings."""
LEAST_BYTES = 256 << 10
"""What a compiled grammar that does not say its size is taken to hold at least."""
BYTES_PER_CHARACTER = 256
"""What it is taken to hold for each character of its source."""
GRACE_S = 0.5
"""Time beyond its own that a worker has to say itself that it took too long."""
WORKERS = 4
"""Grammars that are compiled at once."""
AUTO = "auto"
"""Which stands for whatever back end can."""

_Key = TypeVar("_Key")
_Made = TypeVar("_Made")
_Kept = TypeVar("_Kept")


@dataclass(frozen=True, slots=True)
class Compiled:
    """A grammar, the plugin that answers for it, and what following it has cost."""

    grammar: Grammar
    plugin: str
    cost: Cost = field(default_factory=Cost)


@dataclass(frozen=True, slots=True)
class _Job:
    """A grammar that is compiled, or was. deadline: when those who wait for it are told that it takes too long."""

    future: Future[Compiled]
    deadline: Deadline

    @property
    def is_worth_another(self) -> bool:
        """Whether it failed for a reason that is not the constraint's."""
        return (
            self.future.done()
            and self.future.exception() is not None
            and not isinstance(self.future.exception(), BadRequest)
        )


class Grammars:
    """Compiles constraints in worker threads, equal ones only once.

    backend: the name of the only back end to ask where a request names none, or `AUTO`. timeout_s: how long compiling
    may take, from when it was asked for. cache_bytes: what compiled grammars may hold, beside those that are in use.
    """

    def __init__(
        self,
        registry: Registry,
        context: Callable[[str], Context],
        constraints: Constraints,
        backend: str = AUTO,
        timeout_s: float = 10.0,
        cache_bytes: int = 256 << 20,
    ) -> None:
        self.constraints = constraints
        self._registry = registry
        self._backends: dict[str, GrammarBackend] = dict(registry.of(HOOK))
        if backend != AUTO and backend not in self._backends:
            known = ", ".join([AUTO, *sorted(self._backends)])
            raise ConfigError(f"--structured-outputs-backend must be one of {known}; got {backend!r:.80}.")
        self._default = backend
        self._timeout_s, self._cache_bytes = timeout_s, cache_bytes
        self._compilers = Compilers(registry, context)
        self._jobs: OrderedDict[Structured, _Job] = OrderedDict()
        self._openings: OrderedDict[str, Future[Opening]] = OrderedDict()
        self._pending: set[Future[Any]] = set()
        self._workers: ThreadPoolExecutor | None = None

    def able(self, asked: Structured) -> list[GrammarBackend]:
        """Who may compile it, whom to ask first first. Raises BadRequest if nobody may."""
        name = asked.backend or self._default
        if name != AUTO and name not in self._backends:
            known = ", ".join([AUTO, *sorted(self._backends)])
            raise BadRequest(f"There is no structured-output back end {name!r:.80}; there are {known}.", PARAM)
        offered = [each for each in self._backends.values() if name in (AUTO, each.name)]
        able = [each for each in offered if asked.kind in each.kinds]
        if not able:
            known = ", ".join(sorted({kind for each in offered for kind in each.kinds})) or "none"
            whose = "No loaded plugin" if name == AUTO else f"The back end {name!r} is not one that"
            raise BadRequest(f"{whose} constrains the output by {asked.kind!r}; kinds known: {known}.", PARAM)
        return sorted(able, key=lambda each: -each.priority)

    def prepare(self) -> None:
        """Build the back end that will probably be asked first, which takes long where the vocabulary is large."""
        known = self._backends.values()
        first = self._backends.get(self._default) or max(known, key=lambda each: each.priority, default=None)
        if first is not None:
            plugin = self._registry.plugin_of(HOOK, first.name)
            with suppress(QuireError):  # whoever asks for it is told
                call_plugin(self._registry, plugin, self._compilers.prepare, first)

    def request(self, params: Params) -> None:
        """Begin to compile what a request needs, unless that was done. Raises BadRequest for a kind nobody knows."""
        if not isinstance(params, PoolingParams) and params.structured is not None:
            with _naming(params.structured.param):
                key = _key(params.structured)
                found = self._jobs.get(key)
                if found is not None and found.is_worth_another:
                    del self._jobs[key]
                self._needed(params.structured)

    def _needed(self, asked: Structured) -> tuple[_Job, Future[Opening] | None]:
        """What a constraint is made of; begun, unless that was done."""
        return self._job(_key(asked)), None if asked.after is None else self._opening(asked.after)

    def _job(self, key: Structured) -> _Job:
        if key not in self._jobs:
            able, deadline = self.able(key), Deadline(self._timeout_s)
            self._jobs[key] = _Job(self._begin(self._compile, able, key, deadline), deadline)
            self._evict_grammars()
        self._jobs.move_to_end(key)
        return self._jobs[key]

    def _evict_grammars(self) -> None:
        """Forget those not asked for longest until what is left is within its bounds; it is asked with each new one."""
        sizes = {key: self._num_bytes(key, job) for key, job in self._jobs.items()}
        total = sum(sizes.values())
        for key, size in sizes.items():
            if len(self._jobs) <= MAX_KEPT and total <= self._cache_bytes:
                return
            if self._jobs[key].future.done():
                del self._jobs[key]
                total -= size

    def _num_bytes(self, key: Structured, job: _Job) -> int:
        """What a grammar holds, as far as it says so."""
        if not job.future.done() or job.future.exception() is not None:
            return 0
        compiled = job.future.result()
        with suppress(QuireError):
            said = call_plugin(self._registry, compiled.plugin, getattr, compiled.grammar, "num_bytes", None)
            if isinstance(said, int):
                return said
        return LEAST_BYTES + BYTES_PER_CHARACTER * len(key.source)

    def _opening(self, text: str) -> Future[Opening]:
        if text not in self._openings:
            self._openings[text] = self._begin(self.constraints.opening, text)
            _evict(self._openings, lambda future: future)
        self._openings.move_to_end(text)
        return self._openings[text]

    def _begin(self, work: Callable[..., _Made], *args: Any) -> Future[_Made]:
        """Let a worker do it."""
        if self._workers is None:
            self._workers = ThreadPoolExecutor(WORKERS, "quire-grammar", initializer=run_when_idle)
        future = self._workers.submit(work, *args)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def _compile(self, able: Sequence[GrammarBackend], asked: Structured, deadline: Deadline) -> Compiled:
        """By the first back end that can. Raises BadRequest with the reason of each, if none can."""
        reasons: dict[str, CannotConstrain] = {}
        for backend in able:
            if deadline.has_passed():
                break
            plugin = self._registry.plugin_of(HOOK, backend.name)
            try:
                grammar = call_plugin(self._registry, plugin, self._compilers.compile, backend, asked, deadline)
            except CannotConstrain as error:
                reasons[backend.name] = error
            else:
                return Compiled(grammar, plugin)
        if not reasons:
            raise _no_turn(self._timeout_s)
        param = next((error.param for error in reasons.values() if error.param is not None), PARAM)
        listed = " ".join(f"{name}: {error.message}" for name, error in reasons.items())
        raise BadRequest(listed if len(reasons) == 1 else f"No structured-output back end can do this. {listed}", param)

    def compiled(self, params: Params) -> bool:
        """Whether nothing has to be compiled any more; begins it if it was forgotten. Raises what went wrong."""
        if isinstance(params, PoolingParams) or params.structured is None:
            return True
        with _naming(params.structured.param):
            job, opening = self._needed(params.structured)
            if job.future.done():
                _result(job.future)
            elif job.deadline.has_passed(GRACE_S):
                raise self._late(job)
            if opening is not None and opening.done():
                _result(opening)
        return job.future.done() and (opening is None or opening.done())

    def num_compiling(self, requests: Iterable[Request]) -> int:
        """For how many of these a grammar is being compiled."""
        if not self._pending:
            return 0
        asked = [one.params.structured for one in requests if not isinstance(one.params, PoolingParams)]
        jobs = [self._jobs.get(_key(structured)) for structured in asked if structured is not None]
        return sum(job is not None and not job.future.done() for job in jobs)

    def _late(self, job: _Job) -> QuireError:
        """What is said of a grammar whose time is up."""
        if job.future.running():
            return BadRequest(f"The constraint was not compiled within {self._timeout_s:g} s.", PARAM)
        return _no_turn(self._timeout_s)

    def start(self, asked: Structured, output_ids: Sequence[int]) -> Constraint:
        """One that stands after `output_ids`; waits for the grammar. Raises QuireError if it cannot be had."""
        with _naming(asked.param):
            job, opening = self._needed(asked)
            compiled = _result(job.future)
            begins = None if opening is None else _result(opening)
        return self.constraints.start(compiled.plugin, compiled.grammar, output_ids, begins, compiled.cost, asked.param)

    def pause(self, seconds: float) -> None:
        """Wait until a grammar is compiled, at most so long; for a loop that has nothing else to do."""
        pending = list(self._pending)
        if pending:
            wait(pending, timeout=seconds, return_when="FIRST_COMPLETED")

    def close(self) -> None:
        """Stop the workers."""
        if self._workers is not None:
            self._workers.shutdown(wait=False, cancel_futures=True)
        self._compilers.close()
        self.constraints.close()


@contextmanager
def _naming(param: str) -> Iterator[None]:
    """Let a BadRequest that names no field but the usual one name that which asked."""
    try:
        yield
    except BadRequest as error:
        if error.param not in (None, PARAM):
            raise
        raise BadRequest(error.message, param) from error


def _evict(kept: OrderedDict[_Key, _Kept], future: Callable[[_Kept], Future[Any]]) -> None:
    """Forget those not asked for longest; whoever waits for one of them asks again."""
    while len(kept) > MAX_KEPT:
        oldest = next((key for key, each in kept.items() if future(each).done()), None)
        if oldest is None:
            return
        del kept[oldest]


def _key(asked: Structured) -> Structured:
    """What is compiled of it. Asked in each step for each request that waits, so that it should cost nothing."""
    return asked if asked.after is None else replace(asked, after=None)


def _no_turn(timeout_s: float) -> Overloaded:
    return Overloaded(f"Too many grammars are being compiled: this one had no turn in {timeout_s:g} s.")


def _result(future: Future[_Made]) -> _Made:
    """What was made. Raises QuireError for whatever went wrong."""
    try:
        return future.result()
    except QuireError:
        raise
    except Exception as error:
        raise PluginFailed(f"A grammar could not be compiled: {type(error).__name__}: {error}") from error
