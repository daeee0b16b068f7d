"""The host process: loads plugins and models, then runs the step loop until it is told to end.

Started as `python -m quire.host.process <file descriptor>` by `quire.host.connection`: a socket, whose other end
only the process that started it holds. When that end closes this process ends, and so cannot outlive the other. It
ignores the signals of a terminal: whoever started it says when to stop. Models are built in worker threads while
others are served.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from quire.config import ModelConfig
from quire.errors import CheckpointError, ConfigError, NotFound, StartupError
from quire.host.adapter_desk import AdapterDesk
from quire.host.inbox import Inbox, Item
from quire.host.link import Link
from quire.host.loop import Loop, Steps
from quire.host.protocol import (
    Abort,
    Ask,
    AskAdapters,
    Failed,
    Figures,
    Load,
    LoadAdapter,
    Loaded,
    Message,
    Ready,
    Refused,
    Shutdown,
    Start,
    StartFailed,
    Submit,
    Unload,
    UnloadAdapter,
    Unloaded,
    Unreadable,
    fault_of,
)
from quire.records import Registry

if TYPE_CHECKING:
    from quire.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

Build = Callable[[ModelConfig, Registry, int], Steps]

LEAST_TOKENS = 128
"""A step beside other models is never limited to fewer tokens than this, or than seqs that may run."""

COLLECT_AFTER = (20_000, 50, 50)
"""New objects until the garbage collector looks at the young ones, and how often it looks at older ones: rarely.
Nearly all of ours are freed without it, and it takes a fifth of the time of imports."""

GIVE_WAY_S = 0.0005
"""How long a thread of Python may go on while another wants to. The step loop lets go of the interpreter with each
operation, and has to have it back: by default whoever reads an adapter meanwhile keeps it for 5 ms, a whole step."""

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

    def __init__(self, inbox: Inbox, send: Callable[[Message], None], registry: Registry, build: Build) -> None:
        """`build` makes an engine, given how many models (this one included) are still to share the device's
        memory; it may be called in a worker thread.
        """
        self._inbox, self._send, self._registry, self._build = inbox, send, registry, build
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
            for item in self._inbox.take(wait_s):
                self._handle(item)
            wait_s = self._loop.step()
        for engine in self._loop.engines.values():
            self._aside.submit(self._registry.engine_stopping, engine.info)
            self._aside.submit(engine.close)
        self._aside.shutdown(wait=True, cancel_futures=False)

    def _handle(self, item: Item) -> None:
        match item:
            case Submit():
                self._loop.submit(item)
            case Abort():
                self._loop.abort(item)
            case Ask():
                counter = self._registry.counter
                rows = counter.snapshot() if isinstance(counter, Tallies) else []
                self._send(Figures(item.call, self._loop.stats(), rows))
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
            case Start():
                pass  # there is only one, and it came before
            case call:
                call()

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
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    gc.set_threshold(*COLLECT_AFTER)
    sys.setswitchinterval(GIVE_WAY_S)
    os.set_inheritable(int(descriptor), False)
    link, inbox = Link(socket.socket(fileno=int(descriptor))), Inbox()
    threading.Thread(target=_read, args=(link, inbox), name="reader", daemon=True).start()
    (start,) = inbox.take(None)
    assert isinstance(start, Start), start
    logging.basicConfig(level=start.log_level.upper(), format="%(levelname)s host %(name)s: %(message)s")
    sys.path[:] = start.sys_path or sys.path
    try:
        host = Host(inbox, link.send, _load_plugins(start), build_engine)
        host.start(start)
    except Exception as error:
        log.debug("The start failed", exc_info=True)
        link.send(StartFailed(fault_of(error)))
        link.finish(LINGER_S)
        return 1
    host.run()
    link.finish(LINGER_S)
    return 0


def _load_plugins(start: Start) -> Registry:
    from quire import registry

    return registry.load(start.plugins, start.options, start.enable_lora)


def build_engine(config: ModelConfig, registry: Registry, num_left: int) -> Steps:
    """The real thing, with an equal share of the device memory that is left; imports torch."""
    import torch

    from quire.engine.engine import Engine

    budget = None
    if num_left > 1 and config.device != "cpu" and torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        budget = int(free - total * (1 - config.gpu_memory_utilization)) // num_left
    return Engine.build(config, registry, budget, lambda: tokenizer_of(config))


def tokenizer_of(config: ModelConfig) -> Tokenizer | None:
    """That of a model; None where there is none, since token ids can be served without: the text side says more."""
    from quire import hub
    from quire.text.tokenizer import Tokenizer

    try:
        folder = hub.resolve_tokenizer(config, hub.resolve(config.model, config))
        return Tokenizer.load(folder, config.tokenizer_mode, config.trust_remote_code)
    except CheckpointError:
        return None


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
