"""Grammars: constraints on the output, compiled beside the step loop by the back end that fits, and kept.

A compiled grammar is kept while requests use it, and some longer. It knows no grammar language and no seq:
back ends are plugins, and whoever asks says when a request needs one.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from quire.counting import call_plugin
from quire.engine.compiling import HOOK, Compilers
from quire.engine.constraints import Constraint, Constraints
from quire.engine.humble import be_humble
from quire.engine.openings import Opening
from quire.errors import BadRequest, CannotConstrain, Overloaded, PluginFailed, QuireError
from quire.pooling import PoolingParams
from quire.records import Context, Grammar, GrammarBackend, Registry
from quire.structured import PARAM, Structured
from quire.types import Params

MAX_KEPT = 256
"""Compiled grammars kept for requests to come, and openings."""
WORKERS = 4
"""Grammars that are compiled at once."""
AUTO = "auto"
"""Which stands for whatever back end can."""

_Key = TypeVar("_Key")
_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class Compiled:
    """A grammar, and the plugin that answers for it."""

    grammar: Grammar
    plugin: str


class Grammars:
    """Compiles constraints in worker threads, equal ones only once.

    backend: the name of the only back end to ask where a request names none, or `AUTO`. timeout_s: how long compiling
    may take, from when it was asked for.
    """

    def __init__(
        self,
        registry: Registry,
        context: Callable[[str], Context],
        constraints: Constraints,
        backend: str = AUTO,
        timeout_s: float = 10.0,
    ) -> None:
        self.constraints = constraints
        self._registry = registry
        self._backends: dict[str, GrammarBackend] = dict(registry.of(HOOK))
        self._default = backend
        self._timeout_s = timeout_s
        self._compilers = Compilers(registry, context)
        self._futures: OrderedDict[Structured, Future[Compiled]] = OrderedDict()
        self._openings: OrderedDict[str, Future[Opening]] = OrderedDict()
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
                call_plugin(self._registry, plugin, self._compilers.build, first)

    def request(self, params: Params) -> None:
        """Begin to compile what a request needs, unless that was done. Raises BadRequest for a kind nobody knows."""
        if not isinstance(params, PoolingParams) and params.structured is not None:
            with _naming(params.structured.param):
                self._needed(params.structured)

    def _needed(self, asked: Structured) -> tuple[Future[Compiled], Future[Opening] | None]:
        """What a constraint is made of; begun, unless that was done."""
        return self._future(asked), None if asked.after is None else self._opening(asked.after)

    def _future(self, asked: Structured) -> Future[Compiled]:
        key = replace(asked, after=None)
        if key not in self._futures:
            able = self.able(key)
            deadline = time.monotonic() + self._timeout_s
            self._futures[key] = self._pool().submit(self._compile, able, key, deadline)
            _evict(self._futures)
        self._futures.move_to_end(key)
        return self._futures[key]

    def _opening(self, text: str) -> Future[Opening]:
        if text not in self._openings:
            self._openings[text] = self._pool().submit(self.constraints.opening, text)
            _evict(self._openings)
        self._openings.move_to_end(text)
        return self._openings[text]

    def _pool(self) -> ThreadPoolExecutor:
        if self._workers is None:
            self._workers = ThreadPoolExecutor(WORKERS, "quire-grammar", initializer=be_humble)
        return self._workers

    def _compile(self, able: Sequence[GrammarBackend], asked: Structured, deadline: float) -> Compiled:
        """By the first back end that can. Raises BadRequest with the reason of each, if none can."""
        reasons: dict[str, CannotConstrain] = {}
        for backend in able:
            left = deadline - time.monotonic()
            if left <= 0 and not reasons:
                raise Overloaded(
                    f"Too many grammars are being compiled: this one had no turn in {self._timeout_s:g} s."
                )
            plugin = self._registry.plugin_of(HOOK, backend.name)
            try:
                grammar = call_plugin(self._registry, plugin, self._compilers.compile, backend, asked, max(left, 0.0))
            except CannotConstrain as error:
                reasons[backend.name] = error
            else:
                return Compiled(grammar, plugin)
        param = next((error.param for error in reasons.values() if error.param is not None), PARAM)
        listed = " ".join(f"{name}: {error.message}" for name, error in reasons.items())
        raise BadRequest(listed if len(reasons) == 1 else f"No structured-output back end can do this. {listed}", param)

    def compiled(self, params: Params) -> bool:
        """Whether nothing has to be compiled any more; begins it if it was forgotten. Raises what went wrong."""
        if isinstance(params, PoolingParams) or params.structured is None:
            return True
        with _naming(params.structured.param):
            needed: list[Future[Any]] = [future for future in self._needed(params.structured) if future is not None]
            for future in needed:
                if future.done():
                    _result(future)
        return all(future.done() for future in needed)

    def start(self, asked: Structured, output_ids: Sequence[int]) -> Constraint:
        """One that stands after `output_ids`; waits for the grammar. Raises QuireError if it cannot be had."""
        with _naming(asked.param):
            grammar, opening = self._needed(asked)
            compiled = _result(grammar)
            begins = None if opening is None else _result(opening)
        return self.constraints.start(compiled.plugin, compiled.grammar, output_ids, begins)

    def pause(self, seconds: float) -> None:
        """Wait until a grammar is compiled, at most so long; for a loop that has nothing else to do."""
        begun: list[Future[Any]] = [*self._futures.values(), *self._openings.values()]
        pending = [future for future in begun if not future.done()]
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


def _evict(futures: OrderedDict[_Key, Future[_Made]]) -> None:
    """Forget those not asked for longest; whoever waits for one of them asks again."""
    while len(futures) > MAX_KEPT:
        oldest = next((key for key, future in futures.items() if future.done()), None)
        if oldest is None:
            return
        del futures[oldest]


def _result(future: Future[_Made]) -> _Made:
    """What was made. Raises QuireError for whatever went wrong."""
    try:
        return future.result()
    except QuireError:
        raise
    except Exception as error:
        raise PluginFailed(f"A grammar could not be compiled: {type(error).__name__}: {error}") from error
