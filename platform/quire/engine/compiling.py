"""Compilers of grammars: in this process where they bound themselves, in one that can be ended where they do not.

Doubtful ones may be tried there before they are compiled here: large ones too, since steps would wait for their Python.
Threads may share it. A process starts when it is first needed and compiles one grammar at a time; its start is waited
for beside the time that a grammar has.
"""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

from quire.engine.compile_process import LENGTH, PlainVocabulary, frame
from quire.engine.deadline import Deadline
from quire.errors import CannotConstrain, Overloaded, PluginFailed
from quire.records import Context, Grammar, GrammarBackend, Registry
from quire.structured import Structured

HOOK = "quire_grammar_backends"
START_TIMEOUT_S = 120.0
START_WAIT_S = 100.0
"""How long a grammar waits for a process that starts; it goes on starting for those that come later."""
MEMORY_BYTES = 2 << 30
"""What compiling one grammar may take, beside what the libraries did."""


@dataclass(slots=True)
class _Built:
    """A back end in use.

    lock: held while it is built, and while its process is busy or what that gave is finished here. here: held while it
    compiles here; each more that did at once would take more from the steps, and be no sooner done. starting: held
    by one of those who wait for the start of its process.
    """

    lock: Lock = field(default_factory=Lock)
    here: Lock = field(default_factory=Lock)
    starting: Lock = field(default_factory=Lock)
    compiler: Any = None
    process: _Process | None = None


class Compilers:
    """The back ends at work for one model, each built when it is first needed."""

    def __init__(
        self, registry: Registry, context: Callable[[str], Context], start_wait_s: float = START_WAIT_S
    ) -> None:
        self._registry, self._start_wait_s = registry, start_wait_s
        self._context = context
        self._built = {name: _Built() for name in registry.of(HOOK)}
        self._closed = False

    def compile(self, backend: GrammarBackend, asked: Structured, deadline: Deadline) -> Grammar:
        """What the back end makes of it. Raises BadRequest, Overloaded, or what the back end raises."""
        built = self._built_of(backend)
        made: Grammar
        if backend.isolated:
            built.compiler.check(asked)
            with self._elsewhere(built, backend, ("compile", asked), deadline) as compiled:
                made = built.compiler.restore(compiled)
        elif backend.doubtful is not None and backend.doubtful(asked):
            with self._elsewhere(built, backend, ("attempt", asked), deadline) as attempted:
                made = built.compiler.finish(attempted)
        else:
            with _turn(built.here, backend, deadline.left_s):
                made = built.compiler.compile(asked)
        return made

    def prepare(self, backend: GrammarBackend) -> None:
        """Build what will be asked, and start its process, if it always needs one. Raises what the back end raises."""
        built = self._built_of(backend)
        if backend.isolated:
            with built.lock:
                self._begin(built, backend)

    def _built_of(self, backend: GrammarBackend) -> _Built:
        built = self._built[backend.name]
        if built.compiler is None:  # who comes later does not wait for its process
            with built.lock:
                if built.compiler is None:
                    built.compiler = backend.build(self._context_of(backend))
        return built

    def _context_of(self, backend: GrammarBackend) -> Context:
        return self._context(self._registry.plugin_of(HOOK, backend.name))

    @contextmanager
    def _elsewhere(
        self, built: _Built, backend: GrammarBackend, question: tuple[str, Structured], deadline: Deadline
    ) -> Iterator[Any]:
        """What a method of the back end gives in its process, which has nothing else to do until the block ends.

        So of its large constraints one at a time takes from the steps, wherever it is worked on.
        """
        with deadline.paused(), _turn(built.starting, backend, self._start_wait_s):
            self._wait_for_start(built, backend)
        with _turn(built.lock, backend, deadline.left_s):
            self._begin(built, backend)
            reply = self._ask(built, question, deadline.left_s)
            if isinstance(reply, Exception):
                raise reply
            yield reply

    def _wait_for_start(self, built: _Built, backend: GrammarBackend) -> None:
        """Let the back end have a process that is ready. Raises Overloaded if that takes too long."""
        process = built.process
        if process is None:
            with built.lock:
                self._begin(built, backend)
                process = built.process
        assert process is not None
        try:
            process.wait_until_ready(self._start_wait_s)
        except (EOFError, OSError) as error:
            with built.lock:
                if built.process is process:
                    self._end(built)
            raise PluginFailed(f"The process that compiles grammars did not start: {error!r}") from error

    def _begin(self, built: _Built, backend: GrammarBackend) -> None:
        """Start the back end's process, if it has none; the caller holds the lock."""
        if built.process is None:
            context = self._context_of(backend)
            vocabulary = PlainVocabulary.of(context.tokenizer)
            built.process = _Process(pickle.dumps((backend.build, replace(context, tokenizer=vocabulary))))
        if self._closed:  # perhaps while the process began
            self._end(built)
            raise Overloaded("The engine is closing.")

    def _ask(self, built: _Built, question: tuple[str, Structured], timeout_s: float) -> Any:
        """The reply of the back end's process, which is ended if it has none; the caller holds the lock."""
        assert built.process is not None
        try:
            built.process.wait_until_ready(timeout_s)
        except (EOFError, OSError) as error:
            self._end(built)
            raise PluginFailed(f"The process that compiles grammars did not start: {error!r}") from error
        try:
            return built.process.ask(pickle.dumps((*question, timeout_s)), timeout_s)
        except TimeoutError:
            self._end(built)
            raise CannotConstrain(f"it took longer than {timeout_s:.3g} s to compile.") from None
        except (EOFError, OSError):
            self._end(built)
            raise CannotConstrain(
                f"it ended while compiling, perhaps for want of memory ({MEMORY_BYTES} bytes)."
            ) from None

    def _end(self, built: _Built) -> None:
        if built.process is not None:
            built.process.close()
            built.process = None

    def close(self) -> None:
        """End the processes; what they compile fails."""
        self._closed = True
        for built in self._built.values():
            self._end(built)


@contextmanager
def _turn(lock: Lock, backend: GrammarBackend, timeout_s: float) -> Iterator[None]:
    """Hold a lock of a back end. Raises Overloaded if others held it for so long."""
    if not lock.acquire(timeout=timeout_s):
        raise Overloaded(f"{backend.name}: other grammars kept it busy, so that this one had no turn in time.")
    try:
        yield
    finally:
        lock.release()


class _Process:
    """A process that compiles; see `quire.engine.compile_process`."""

    def __init__(self, what: bytes) -> None:
        """what: a pickled pair of a back end's `build` and its context."""
        path = os.pathsep.join(dict.fromkeys(entry for entry in sys.path if entry))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "quire.engine.compile_process", str(MEMORY_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            process_group=0,  # Ctrl-C in the terminal is the server's affair; a session would have a share of the cores
        )
        self._began, self._ready = time.monotonic(), False
        self._waiting = Lock()
        assert self._process.stdin is not None
        with suppress(OSError):  # it is read from what there is to read that the process has ended
            self._process.stdin.write(frame(what))
            self._process.stdin.flush()

    def wait_until_ready(self, timeout_s: float) -> None:
        """Raises Overloaded if that takes longer: it goes on starting. Raises TimeoutError, EOFError, OSError if it
        takes too long for any; then the process is of no use.
        """
        with self._waiting:
            if not self._ready:
                self._wait(timeout_s)

    def _wait(self, timeout_s: float) -> None:
        now, last = time.monotonic(), self._began + START_TIMEOUT_S
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], max(0.0, min(timeout_s, last - now)))[0] and now < last:
            raise Overloaded("The process that compiles grammars is still starting; try again in some seconds.")
        self._reply(last)
        self._ready = True

    def ask(self, question: bytes, timeout_s: float) -> Any:
        """The reply to a pickled question. Raises TimeoutError, EOFError, OSError; then the process is of no use."""
        assert self._process.stdin is not None
        deadline = time.monotonic() + timeout_s
        self._process.stdin.write(frame(question))
        self._process.stdin.flush()
        return self._reply(deadline)

    def _reply(self, deadline: float) -> Any:
        (length,) = LENGTH.unpack(self._read(LENGTH.size, deadline))
        return pickle.loads(self._read(length, deadline))

    def _read(self, count: int, deadline: float) -> bytes:
        assert self._process.stdout is not None
        descriptor, found = self._process.stdout.fileno(), bytearray()
        while len(found) < count:
            readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                raise TimeoutError
            piece = os.read(descriptor, min(count - len(found), 1 << 20))
            if not piece:
                raise EOFError
            found += piece
        return bytes(found)

    def close(self) -> None:
        """End it now."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()
        self._process.wait()
