"""The host process: loads plugins and models, then runs the step loop until it is told to end.

Started as `python -m quire.host.process <file descriptor>` by `quire.host.connection`: a socket, whose other end
only the process that started it holds. When that end closes this process ends, and so cannot outlive the other. It
ignores SIGINT, SIGTERM and SIGHUP: the process that started it says when to stop, and blocked them until they are
ignored. Models are built in worker threads while others are served.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, runtime_checkable

from quire.config import ModelConfig
from quire.errors import ConfigError, NotFound, StartupError
from quire.host.adapter_desk import AdapterDesk
from quire.host.engine_builder import EngineBuilder
from quire.host.faults import fault_of
from quire.host.inbox import Inbox, Item
from quire.host.link import Link
from quire.host.loop import KeepsFailing, Loop, Steps
from quire.host.protocol import (
    Abort,
    Ask,
    AskAdapters,
    Ending,
    Failed,
    Figures,
    Load,
    LoadAdapter,
    Loaded,
    Message,
    Ping,
    Pong,
    Ready,
    Refused,
    Shutdown,
    Start,
    Submit,
    Unload,
    UnloadAdapter,
    Unloaded,
    Unreadable,
)
from quire.host.settings import IGNORED_SIGNALS
from quire.log_format import log_to_stderr
from quire.records import Registry

log = logging.getLogger("quire.host")

Build = Callable[[ModelConfig, Registry, int], Steps]
"""Makes an engine, given how many models, this one included, are still to come of those that are loaded together."""

LEAST_TOKENS = 128
"""A step beside other models is never limited to fewer tokens than this, or than seqs that may run."""

COLLECT_AFTER = (20_000, 50, 50)
"""New objects until the garbage collector looks at the young ones, and how often it looks at older ones: rarely.
Nearly all of ours are freed without it, and it takes a fifth of the time of imports."""

GIVE_WAY_S = 0.0005
"""How long a thread of Python may go on while another wants to. The step loop lets go of the interpreter with each
operation, and has to have it back: by default whoever reads an adapter meanwhile keeps it for 5 ms, a whole step."""

MESSAGES_S = 0.005
"""Longest time for messages between two steps, the last one's excess left out. A call with thousands of texts is as
many messages, which take a second."""

LINGER_S = 2.0
"""How long the last messages may take to be delivered after the end."""


@runtime_checkable
class Tallies(Protocol):
    """A call counter that can be read."""

    def snapshot(self) -> list[dict[str, Any]]:
        """Rows of plugin, calls, errors and seconds."""
        ...


class Host:
    """The loop and what happens beside it."""

    def __init__(
        self,
        inbox: Inbox,
        send: Callable[[Message], None],
        registry: Registry,
        build: Build,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`build` may be called in a worker thread; `clock` gives seconds."""
        self._inbox, self._send, self._registry, self._build, self._clock = inbox, send, registry, build, clock
        self._loop = Loop(send)
        self._desk = AdapterDesk(inbox, send, self._loop.engines)
        self._aside = ThreadPoolExecutor(1, "aside")
        self._stopping = False

    def start(self, start: Start) -> None:
        """Load models one after another, and adapters, and report; raises what loading raises."""
        for i, config in enumerate(start.models):
            try:
                engine = self._build(config, self._registry, len(start.models) - i)
            except StartupError as error:
                raise error if len(start.models) == 1 else error.of_model(config.name) from error
            self._join(config, engine)
        adapters = self._desk.start(start.adapters, start.known_adapters)
        self._send(Ready([engine.info for engine in self._loop.engines.values()], adapters))
        gc.freeze()  # what is loaded stays: the collector need not look at it again in the middle of a step

    def run(self) -> None:
        """Serve until `Shutdown`, then tell the plugins."""
        wait_s: float | None = 0
        while not self._stopping:
            self._take_in(wait_s)
            wait_s = self._loop.step()
        for engine in self._loop.engines.values():
            self._aside.submit(self._registry.engine_stopping, engine.info)
            self._aside.submit(engine.close)
        self._aside.shutdown(wait=True, cancel_futures=False)

    def _take_in(self, wait_s: float | None) -> None:
        """Handle messages, but not so many at once that the requests under way wait for their next step."""
        begin: float | None = None
        for item in self._inbox.take(wait_s):
            begin = self._clock() if begin is None else begin
            self._handle(item)
            if self._stopping or self._clock() - begin > MESSAGES_S:
                return

    def _handle(self, item: Item) -> None:
        match item:
            case Submit():
                self._loop.submit(item)
            case Abort():
                self._loop.abort(item)
            case Ask() | Ping():
                self._send(self._answer(item))
            case LoadAdapter() | UnloadAdapter() | AskAdapters():
                self._desk.take(item)
            case Load():
                self._aside.submit(self._load, item)
            case Unload():
                self._unload(item)
            case Unreadable():
                self._send(Refused(item.request_id, item.fault))
            case Shutdown():
                self._stopping = True
            case _ if callable(item):
                item()  # what is left is `Start`: there is only one, and it came before

    def _answer(self, question: Ask | Ping) -> Message:
        if isinstance(question, Ping):
            return Pong()
        counter = self._registry.counter
        rows = counter.snapshot() if isinstance(counter, Tallies) else []
        return Figures(question.call, self._loop.stats(), rows)

    def _join(self, config: ModelConfig, engine: Steps) -> None:
        taken = {name for other in self._loop.engines.values() for name in _names(other)}
        for name in _names(engine):
            if name in taken:
                raise ConfigError(f"Two models are named {name!r}; give one another name (name=path).")
        self._loop.join(engine, max(LEAST_TOKENS, config.max_num_seqs), config.max_num_batched_tokens)
        self._aside.submit(self._registry.engine_started, engine.info)

    def _load(self, message: Load) -> None:
        """In the worker thread: build, and let the loop thread take it in."""
        try:
            engine = self._build(message.config, self._registry, 1)
        except Exception as error:
            failed = Failed(message.call, fault_of(error))
            self._inbox.put(lambda: self._send(failed))
            return

        def join() -> None:
            try:
                self._join(message.config, engine)
            except ConfigError as error:
                engine.close()
                self._send(Failed(message.call, fault_of(error)))
                return
            self._send(Loaded(message.call, engine.info))

        self._inbox.put(join)

    def _unload(self, message: Unload) -> None:
        if message.model not in self._loop.engines:
            self._send(Failed(message.call, fault_of(NotFound(f"The model `{message.model}` is not loaded."))))
            return

        def let_go(engine: Steps) -> None:
            self._aside.submit(self._registry.engine_stopping, engine.info)
            engine.close()
            self._send(Unloaded(message.call))

        self._loop.leave(message.model, let_go)


def _names(engine: Steps) -> tuple[str, ...]:
    return (engine.info.name, *engine.info.aliases)


def main(descriptor: str) -> int:
    """Serve the process at the other end of the socket with this file descriptor; the exit status."""
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED_SIGNALS)
    gc.set_threshold(*COLLECT_AFTER)
    sys.setswitchinterval(GIVE_WAY_S)
    os.set_inheritable(int(descriptor), False)
    link, inbox = Link(socket.socket(fileno=int(descriptor))), Inbox()
    threading.Thread(target=_read, args=(link, inbox), name="reader", daemon=True).start()
    (start,) = inbox.take(None)
    assert isinstance(start, Start), start
    log_to_stderr(start.log_level)
    sys.path[:] = start.sys_path or sys.path
    try:
        builder = EngineBuilder()
        host = Host(inbox, link.send, _load_plugins(start), builder.build)
        host.start(start)
        builder.log_memory()
    except Exception as error:
        log.debug("The start failed", exc_info=True)
        link.send(Ending(fault_of(error)))
        link.finish(LINGER_S)
        return 1
    try:
        host.run()
    except Exception as error:
        log.critical("The step loop ended: %s", error, exc_info=not isinstance(error, KeepsFailing))
        link.send(Ending(fault_of(error)))
        link.finish(LINGER_S)
        logging.shutdown()
        os._exit(1)  # and not return: a worker thread that hangs would be waited for
    link.finish(LINGER_S)
    return 0


def _load_plugins(start: Start) -> Registry:
    from quire import registry

    return registry.load(start.plugins, start.options, start.enable_lora, max_faults=start.plugin_max_faults)


def _read(link: Link, inbox: Inbox) -> None:
    """In a thread: all that arrives, until the parent is gone. What cannot be read ends the process."""
    try:
        link.read(inbox.put)
    except Exception as error:
        inbox.put(partial(_raise, error))
        return
    os._exit(0)


def _raise(error: Exception) -> None:
    raise error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
