"""Grammars: constraints on the output, compiled beside the step loop, and matchers begun from them.

A compiled grammar is kept while requests use it, and some longer. It knows no grammar language and no seq:
back ends are plugins, and whoever asks says when a request needs one and when it is over.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from quire.counting import call_plugin
from quire.engine.processors import GRAMMARS, Constraint, Constraints
from quire.errors import BadRequest, PluginFailed, QuireError
from quire.records import CompilesGrammars, Context, Grammar, GrammarBackend, Registry

MAX_KEPT = 256
"""Compiled grammars kept for requests to come."""
MAX_SOURCE = 1 << 20
"""Characters of a grammar's source."""

Source = tuple[str, str]


class Grammars:
    """Compiles (kind, source) pairs in one worker thread, the same one only once."""

    def __init__(self, registry: Registry, context: Callable[[str], Context], eos_ids: Collection[int] = ()) -> None:
        self.constraints = Constraints(registry, eos_ids)
        self._registry = registry
        self._context = context
        self._compilers: dict[str, CompilesGrammars] = {}  # by back end; only the worker thread touches it
        self._futures: OrderedDict[Source, Future[Grammar]] = OrderedDict()
        self._worker: ThreadPoolExecutor | None = None

    def backend(self, kind: str) -> GrammarBackend:
        """Who compiles this kind: of those that can, the one with the highest priority."""
        backends = list(self._registry.of(GRAMMARS).values())
        able: list[GrammarBackend] = [backend for backend in backends if kind in backend.kinds]
        if not able:
            known = ", ".join(sorted({kind for backend in backends for kind in backend.kinds})) or "none"
            raise BadRequest(
                f"No loaded plugin constrains the output by {kind!r}; kinds known: {known}.", "structured_outputs"
            )
        return max(able, key=lambda backend: backend.priority)

    def request(self, structured: Source) -> None:
        """Begin to compile unless that was done. Raises BadRequest for a kind nobody knows."""
        kind, source = structured
        backend = self.backend(kind)
        if len(source) > MAX_SOURCE:
            raise BadRequest(f"A grammar may have at most {MAX_SOURCE} characters.", "structured_outputs")
        if structured not in self._futures:
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, thread_name_prefix="quire-grammar")
            self._futures[structured] = self._worker.submit(self._compile, backend, kind, source)
            self._evict()
        self._futures.move_to_end(structured)

    def _evict(self) -> None:
        """Forget those not asked for longest; whoever waits for one of them asks again."""
        while len(self._futures) > MAX_KEPT:
            oldest = next((key for key, future in self._futures.items() if future.done()), None)
            if oldest is None:
                return
            del self._futures[oldest]

    def _compile(self, backend: GrammarBackend, kind: str, source: str) -> Grammar:
        plugin = self._registry.plugin_of(GRAMMARS, backend.name)
        if backend.name not in self._compilers:
            context = self._context(plugin)
            self._compilers[backend.name] = call_plugin(self._registry, plugin, backend.build, context)
        compiled: Grammar = call_plugin(self._registry, plugin, self._compilers[backend.name].compile, kind, source)
        return compiled

    def ready(self, structured: Source) -> bool:
        """Whether compiling has ended, in success or failure; begins it if it was forgotten."""
        if structured not in self._futures:
            self.request(structured)
        self._futures.move_to_end(structured)
        return self._futures[structured].done()

    def failure(self, structured: Source) -> QuireError | None:
        """What went wrong, if compiling has failed."""
        future = self._futures.get(structured)
        error = future.exception() if future is not None and future.done() else None
        if error is None or isinstance(error, QuireError):
            return error
        return PluginFailed(f"A grammar could not be compiled: {type(error).__name__}: {error}")

    def start(self, structured: Source, output_ids: Sequence[int]) -> Constraint:
        """A matcher that stands after `output_ids`. Raises QuireError if the grammar is not there."""
        future = self._futures.get(structured)
        if future is None:
            self.request(structured)
            future = self._futures[structured]
        failure = None if not future.done() else self.failure(structured)
        if failure is not None:
            raise failure
        plugin = self._registry.plugin_of(GRAMMARS, self.backend(structured[0]).name)
        return self.constraints.start(plugin, future.result(), output_ids)

    def pause(self, seconds: float) -> None:
        """Wait until a grammar is compiled, at most so long; for a loop that has nothing else to do."""
        pending = [future for future in self._futures.values() if not future.done()]
        if pending:
            wait(pending, timeout=seconds, return_when="FIRST_COMPLETED")

    def close(self) -> None:
        """Stop the worker."""
        if self._worker is not None:
            self._worker.shutdown(wait=False, cancel_futures=True)
