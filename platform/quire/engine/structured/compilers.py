"""Compiles grammars with the back ends that plugins bring, in this process or in one that can be killed.

A back end says which constraints need its process: those whose work nothing bounds, and large ones, whose Python would
hold the GIL during steps. Threads may share the compilers. A back end's process starts on first use and compiles one
grammar at a time. Its start does not count towards the time limit of a grammar.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

from quire.engine.structured.compiler_process import VocabularySnapshot
from quire.engine.structured.deadline import Deadline
from quire.errors import Overloaded, PluginFailed, UnsupportedConstraint
from quire.isolation.child_process import ChildProcess, path_variable
from quire.params.structured import StructuredSpec
from quire.records import Context, Grammar, GrammarBackend, Registry

HOOK = "quire_grammar_backends"
START_TIMEOUT_S = 120.0
"""Limit of the start of a process."""
START_WAIT_S = 100.0
"""How long a grammar waits for a process that starts. The start goes on for later grammars."""
MEMORY_BYTES = 2 << 30
"""Limit of memory for compiling one grammar, in addition to what the libraries hold."""


@dataclass(slots=True)
class _BackendState:
    """A back end and its process.

    lock: held while the back end is built, while its process is busy, and while a result of the process is restored
    here. local: held while it compiles here, since several at once would take more from the steps and finish no sooner.
    starting: held by the one caller that waits for the start of its process.
    """

    lock: Lock = field(default_factory=Lock)
    local: Lock = field(default_factory=Lock)
    starting: Lock = field(default_factory=Lock)
    compiler: Any = None
    process: _CompilerProcess | None = None


class GrammarCompilers:
    """The back ends of one model, each built on first use."""

    def __init__(
        self, registry: Registry, context: Callable[[str], Context], start_wait_s: float = START_WAIT_S
    ) -> None:
        self._registry, self._start_wait_s = registry, start_wait_s
        self._context = context
        self._states = {name: _BackendState() for name in registry.by_hook(HOOK)}
        self._closed = False

    def compile(self, backend: GrammarBackend, asked: StructuredSpec, deadline: Deadline) -> Grammar:
        """The compiled constraint. Raises BadRequest, Overloaded, or what the back end raises."""
        state = self._built(backend)
        grammar: Grammar
        needs_process = getattr(state.compiler, "needs_process", None)
        if needs_process is not None and needs_process(asked):
            with self._in_subprocess(state, backend, asked, deadline) as compiled:
                grammar = state.compiler.load(compiled)
        else:
            with _acquire(state.local, backend, deadline.left_s):
                grammar = state.compiler.compile(asked)
        return grammar

    def prepare(self, backend: GrammarBackend) -> None:
        """Build a back end, and start its process if every constraint needs it. Raises what the back end raises."""
        state = self._built(backend)
        if backend.isolated:
            with state.lock:
                self._ensure_process(state, backend)

    def _built(self, backend: GrammarBackend) -> _BackendState:
        state = self._states[backend.name]
        if state.compiler is None:  # checked without the lock, so that later callers do not wait for its process
            with state.lock:
                if state.compiler is None:
                    state.compiler = backend.build(self._context_of(backend))
        return state

    def _context_of(self, backend: GrammarBackend) -> Context:
        return self._context(self._registry.plugin_of(HOOK, backend.name))

    @contextmanager
    def _in_subprocess(
        self, state: _BackendState, backend: GrammarBackend, asked: StructuredSpec, deadline: Deadline
    ) -> Iterator[Any]:
        """The result of `compile_in_worker` in the back end's process, which gets no other until the block ends.

        So at most one large constraint of a back end takes CPU time from the steps, here or in the process.
        """
        with deadline.paused(), _acquire(state.starting, backend, self._start_wait_s):
            self._wait_for_start(state, backend)
        with _acquire(state.lock, backend, deadline.left_s):
            self._ensure_process(state, backend)
            reply = self._ask(state, asked, deadline.left_s)
            if isinstance(reply, Exception):
                raise reply
            yield reply

    def _wait_for_start(self, state: _BackendState, backend: GrammarBackend) -> None:
        """Wait until the back end has a process that is ready. Raises Overloaded if that takes too long."""
        process = state.process
        if process is None:
            with state.lock:
                self._ensure_process(state, backend)
                process = state.process
        assert process is not None
        try:
            process.wait_until_ready(self._start_wait_s)
        except (EOFError, OSError) as error:
            with state.lock:
                if state.process is process:
                    self._end(state)
            raise PluginFailed(f"The process that compiles grammars did not start: {error!r}") from error

    def _ensure_process(self, state: _BackendState, backend: GrammarBackend) -> None:
        """Start the back end's process if there is none. The caller holds `state.lock`."""
        if state.process is None:
            context = self._context_of(backend)
            vocabulary = VocabularySnapshot.from_tokenizer(context.tokenizer)
            state.process = _CompilerProcess(pickle.dumps((backend.build, replace(context, tokenizer=vocabulary))))
        if self._closed:  # perhaps while the process started
            self._end(state)
            raise Overloaded("The engine is closing.")

    def _ask(self, state: _BackendState, asked: StructuredSpec, timeout_s: float) -> Any:
        """The reply of the back end's process, which is killed if there is none. The caller holds `state.lock`."""
        assert state.process is not None
        try:
            state.process.wait_until_ready(timeout_s)
        except (EOFError, OSError) as error:
            self._end(state)
            raise PluginFailed(f"The process that compiles grammars did not start: {error!r}") from error
        try:
            return state.process.ask(pickle.dumps((asked, timeout_s)), timeout_s)
        except TimeoutError:
            self._end(state)
            raise UnsupportedConstraint(f"it took longer than {timeout_s:.3g} s to compile.") from None
        except (EOFError, OSError):
            self._end(state)
            raise UnsupportedConstraint(
                f"it ended while compiling, perhaps for lack of memory ({MEMORY_BYTES} bytes)."
            ) from None

    def _end(self, state: _BackendState) -> None:
        if state.process is not None:
            state.process.end()
            state.process = None

    def close(self) -> None:
        """Kill the processes. What they compile fails."""
        self._closed = True
        for state in self._states.values():
            self._end(state)


@contextmanager
def _acquire(lock: Lock, backend: GrammarBackend, timeout_s: float) -> Iterator[None]:
    """Hold a lock of a back end. Raises Overloaded if it is not free in time."""
    if not lock.acquire(timeout=timeout_s):
        raise Overloaded(f"{backend.name}: other grammars kept it busy, so that this one was not started in time.")
    try:
        yield
    finally:
        lock.release()


class _CompilerProcess:
    """A process that compiles (`compiler_process`). backend: a pickled pair of `build` and context."""

    def __init__(self, backend: bytes) -> None:
        # No session of its own: where sessions share the cores equally, it would get a whole share.
        arguments = ["-m", "quire.engine.structured.compiler_process", str(MEMORY_BYTES)]
        self._process = ChildProcess(arguments, {**os.environ, "PYTHONPATH": path_variable()})
        self._start_deadline, self._is_ready = time.monotonic() + START_TIMEOUT_S, False
        self._waiting = Lock()
        with suppress(OSError):  # that the process ended is noticed when it is read from
            self._process.send(backend, self._start_deadline)

    def wait_until_ready(self, timeout_s: float) -> None:
        """Raises Overloaded if the start takes longer than `timeout_s`; it goes on.

        Raises TimeoutError, EOFError or OSError if it failed. After that, the process must be ended.
        """
        with self._waiting:
            if not self._is_ready:
                self._wait(timeout_s)

    def _wait(self, timeout_s: float) -> None:
        left_s = self._start_deadline - time.monotonic()
        if left_s > 0 and not self._process.has_reply(min(timeout_s, left_s)):
            raise Overloaded("The process that compiles grammars is still starting; try again in some seconds.")
        self._process.receive(self._start_deadline)
        self._is_ready = True

    def ask(self, request: bytes, timeout_s: float) -> Any:
        """The reply to a pickled request. Raises TimeoutError, EOFError or OSError; then the process must be ended."""
        body, _ = self._process.ask(request, timeout_s)
        return pickle.loads(body)

    def end(self) -> None:
        self._process.end()
