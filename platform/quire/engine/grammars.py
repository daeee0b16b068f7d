"""Grammars: constraints on the output, compiled beside the step loop by the back end that fits, and kept.

A compiled grammar is kept while requests use it, and some longer. It knows no grammar language and no seq:
back ends are plugins, and whoever asks says when a request needs one.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace

from quire.counting import call_plugin
from quire.engine.compiling import HOOK, Compilers
from quire.engine.constraints import Constraint, Constraints
from quire.engine.humble import be_humble
from quire.errors import BadRequest, CannotConstrain, Overloaded, PluginFailed, QuireError
from quire.pooling import PoolingParams
from quire.records import Context, Grammar, GrammarBackend, Registry
from quire.structured import PARAM, Structured
from quire.types import Params

MAX_KEPT = 256
"""Compiled grammars kept for requests to come."""
WORKERS = 4
"""Grammars that are compiled at once."""
AUTO = "auto"
"""Which stands for whatever back end can."""


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
            self._future(params.structured)

    def _future(self, asked: Structured) -> Future[Compiled]:
        key = replace(asked, after=None)
        if key not in self._futures:
            able = self.able(key)
            if self._workers is None:
                self._workers = ThreadPoolExecutor(WORKERS, "quire-grammar", initializer=be_humble)
            deadline = time.monotonic() + self._timeout_s
            self._futures[key] = self._workers.submit(self._compile, able, key, deadline)
            self._evict()
        self._futures.move_to_end(key)
        return self._futures[key]

    def _evict(self) -> None:
        """Forget those not asked for longest; whoever waits for one of them asks again."""
        while len(self._futures) > MAX_KEPT:
            oldest = next((key for key, future in self._futures.items() if future.done()), None)
            if oldest is None:
                return
            del self._futures[oldest]

    def _compile(self, able: Sequence[GrammarBackend], asked: Structured, deadline: float) -> Compiled:
        """By the first back end that can. Raises BadRequest with the reason of each, if none can."""
        reasons: dict[str, str] = {}
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
                reasons[backend.name] = error.message
            else:
                return Compiled(grammar, plugin)
        if len(reasons) == 1:
            raise BadRequest(f"{backend.name}: {reasons[backend.name]}", PARAM)
        listed = " ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise BadRequest(f"No structured-output back end can do this. {listed}", PARAM)

    def compiled(self, params: Params) -> bool:
        """Whether nothing has to be compiled any more; begins it if it was forgotten. Raises what went wrong."""
        if isinstance(params, PoolingParams) or params.structured is None:
            return True
        future = self._future(params.structured)
        return future.done() and _result(future) is not None

    def start(self, asked: Structured, output_ids: Sequence[int]) -> Constraint:
        """One that stands after `output_ids`; waits for the grammar. Raises QuireError if it cannot be had."""
        compiled = _result(self._future(asked))
        return self.constraints.start(compiled.plugin, compiled.grammar, output_ids, asked.after)

    def pause(self, seconds: float) -> None:
        """Wait until a grammar is compiled, at most so long; for a loop that has nothing else to do."""
        pending = [future for future in self._futures.values() if not future.done()]
        if pending:
            wait(pending, timeout=seconds, return_when="FIRST_COMPLETED")

    def close(self) -> None:
        """Stop the workers."""
        if self._workers is not None:
            self._workers.shutdown(wait=False, cancel_futures=True)
        self._compilers.close()
        self.constraints.close()


def _result(future: Future[Compiled]) -> Compiled:
    """What was compiled. Raises QuireError for whatever went wrong."""
    try:
        return future.result()
    except QuireError:
        raise
    except Exception as error:
        raise PluginFailed(f"A grammar could not be compiled: {type(error).__name__}: {error}") from error
