"""The engine process: loads plugins and models, then runs the step loop until it gets `Shutdown`.

`quire.engine_process.wire.spawn` starts it as `python -m quire.engine_process.process <file descriptor>`. The
descriptor is one end of a socket pair, and only the API process holds the other end: when that closes, this process
exits, so it cannot outlive its parent. SIGINT, SIGTERM and SIGHUP are blocked from the start and then ignored: the
API process decides when to stop.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

from quire.engine_process.adapter_messages import AdapterMessageHandler
from quire.engine_process.engine_builder import EngineBuilder
from quire.engine_process.model_messages import (
    EngineBuilderProtocol,
    ModelMessageHandler,
    check_names,
)
from quire.engine_process.pacing.loading_threads import LoadPauses
from quire.engine_process.settings import GC_THRESHOLDS
from quire.engine_process.step_loop import EngineProtocol, StepLoop, StepsKeepFailing
from quire.engine_process.wire.adapter_changes import ListAdapters, LoadAdapter, RegisterAdapter, UnloadAdapter
from quire.engine_process.wire.error_info import to_error_info
from quire.engine_process.wire.message import WireMessage
from quire.engine_process.wire.model_changes import LoadModel, SleepModel, UnloadModel, WakeModel, progress_reporter
from quire.engine_process.wire.protocol import (
    Abort,
    EngineFailed,
    GetStats,
    MalformedRequest,
    Ping,
    Pong,
    Ready,
    RequestRejected,
    Shutdown,
    Start,
    StatsReply,
    Submit,
    ToEngine,
)
from quire.engine_process.wire.transport import Transport
from quire.errors import StartupError
from quire.isolation.module_process import ignore_signals
from quire.log_format import log_to_stderr
from quire.records import Registry
from quire.settings.model_config import ModelConfig

log = logging.getLogger("quire.engine_process")

Item = ToEngine | MalformedRequest | Callable[[], None]
"""What the loop thread takes from its queue: a message, or a function that another thread wants it to call."""

SWITCH_INTERVAL_S = 0.0005
"""GIL switch interval. The step loop releases the GIL in every op and needs it back at once; with the default of 5 ms a
thread that reads an adapter could hold the GIL for a whole step."""

MESSAGES_S = 0.005
"""Longest time spent on messages between two steps, apart from the last message. A request with thousands of texts is
thousands of messages, which take a second."""

FLUSH_TIMEOUT_S = 2.0
"""How long the last messages may take to be delivered at exit."""


def drain(queue: SimpleQueue[Item], timeout_s: float | None) -> Iterator[Item]:
    """Yield the items of a queue; waits up to `timeout_s` (None: without limit) for the first one.

    Items that the caller does not ask for stay in the queue.
    """
    if timeout_s != 0:
        try:
            yield queue.get(timeout=timeout_s)
        except Empty:
            return
    while not queue.empty():
        yield queue.get_nowait()


class EngineProcess:
    """The step loop, and the messages to it."""

    def __init__(
        self,
        inbox: SimpleQueue[Item],
        send: Callable[[WireMessage], None],
        registry: Registry,
        builder: EngineBuilderProtocol,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """send: only called in the loop thread. clock: returns seconds."""
        self._inbox, self._send, self._registry, self._builder, self._clock = inbox, send, registry, builder, clock
        self._loop = StepLoop(send)
        self._models = ModelMessageHandler(inbox.put, send, self._loop, registry, builder, self._add)
        self._adapters = AdapterMessageHandler(inbox.put, send, self._loop.engines)
        self._background = ThreadPoolExecutor(1, "background")
        self._stopping = False

    def start(self, start: Start) -> None:
        """Load models one after another, then adapters, and send `Ready`; raises what loading raises."""
        first = [config for config in start.models if config.name not in start.added]
        for i, config in enumerate(first):
            try:
                self._load(config, len(first) - i)
            except StartupError as error:
                raise error if len(start.models) == 1 else error.of_model(config.name) from error
        failed = {}
        for config in start.models:
            if config.name in start.added:
                try:
                    self._load(config, 1)
                except Exception as error:  # the others are served without it
                    log.error("%s could not be loaded again: %s", config.name, error)
                    failed[config.name] = to_error_info(error)
        adapters = self._adapters.start(start.adapters, start.known_adapters)
        infos = [engine.info for engine in self._loop.engines.values()]
        self._send(Ready(infos, adapters, failed, self._builder.memory_limit()))
        gc.freeze()  # everything loaded so far stays: exclude it from collections in the middle of a step

    def _load(self, config: ModelConfig, num_left: int) -> None:
        report = progress_reporter(config.name, self._send)
        self._add(config, self._builder.build(config, self._registry, num_left, report))

    def run(self) -> None:
        """Serve until `Shutdown`, then notify the plugins and close the engines."""
        wait_s: float | None = 0
        pauses = LoadPauses()
        while not self._stopping:
            self._handle_messages(wait_s)
            began = self._clock()
            wait_s = self._loop.step(self._models.is_loading)
            if wait_s == 0 and self._models.is_loading:
                wait_s = pauses.after(self._clock() - began, self._loop.num_busy)
        self._models.close()
        for engine in self._loop.engines.values():
            self._background.submit(self._registry.engine_stopping, engine.info)
            self._background.submit(engine.close)
        self._background.shutdown(wait=True, cancel_futures=False)

    def _handle_messages(self, wait_s: float | None) -> None:
        """Handle messages for a limited time, so that running requests get their next step."""
        begin: float | None = None
        for item in drain(self._inbox, wait_s):
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
            case GetStats() | Ping():
                self._send(self._answer(item))
            case LoadAdapter() | RegisterAdapter() | UnloadAdapter() | ListAdapters():
                self._adapters.handle(item)
            case LoadModel() | UnloadModel() | SleepModel() | WakeModel():
                self._models.handle(item)
            case MalformedRequest():
                self._send(RequestRejected(item.request_id, item.error))
            case Shutdown():
                self._stopping = True
            case _ if callable(item):
                item()  # the only case left is `Start`, which is always the first message and handled in `main`

    def _answer(self, message: GetStats | Ping) -> WireMessage:
        if isinstance(message, Ping):
            return Pong()
        counter = self._registry.counter
        rows = counter.snapshot() if counter is not None else []
        return StatsReply(message.call_id, self._loop.stats(), rows)

    def _add(self, config: ModelConfig, engine: EngineProtocol) -> None:
        check_names((engine.info.name, *engine.info.aliases), self._loop.engines.values())
        self._loop.add(engine, config.max_num_batched_tokens)
        self._background.submit(self._registry.engine_started, engine.info)


def main(descriptor: str, prepare: Callable[[], None] = lambda: None) -> int:
    """Serve the API process at the other end of the socket with this file descriptor; returns the exit status.

    prepare: called before the first message is awaited.
    """
    ignore_signals()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    os.set_inheritable(int(descriptor), False)
    transport = Transport(socket.socket(fileno=int(descriptor)))
    inbox: SimpleQueue[Item] = SimpleQueue()
    threading.Thread(target=_read, args=(transport, inbox), name="reader", daemon=True).start()
    prepare()
    start = inbox.get()
    assert isinstance(start, Start), start
    log_to_stderr(start.log_level, start.log_format)
    sys.path[:] = start.sys_path or sys.path
    try:
        builder = EngineBuilder(start.share, start.kv_events, start.memory)
        process = EngineProcess(inbox, transport.send, _load_plugins(start), builder)
        process.start(start)
        builder.log_memory()
    except Exception as error:
        log.debug("The start failed", exc_info=True)
        transport.send(EngineFailed(to_error_info(error)))
        transport.finish(FLUSH_TIMEOUT_S)
        return 1
    try:
        process.run()
    except Exception as error:
        log.critical("The step loop ended: %s", error, exc_info=not isinstance(error, StepsKeepFailing))
        transport.send(EngineFailed(to_error_info(error)))
        transport.finish(FLUSH_TIMEOUT_S)
        logging.shutdown()
        os._exit(1)  # a return would wait for worker threads, which may hang
    transport.finish(FLUSH_TIMEOUT_S)
    builder.end()
    return 0


def _load_plugins(start: Start) -> Registry:
    from quire.hooks import registry

    return registry.load(start.plugins, start.options, start.enable_lora, max_faults=start.plugin_max_faults)


def _read(transport: Transport, inbox: SimpleQueue[Item]) -> None:
    """In a thread: read messages until the API process is gone. One that cannot be decoded ends the process."""
    try:
        transport.read(inbox.put)
    except Exception as error:
        inbox.put(partial(_raise, error))
        return
    os._exit(0)


def _raise(error: Exception) -> None:
    raise error


def import_engine() -> None:
    """Import what every engine needs, torch above all, while the API process still parses its settings."""
    with suppress(Exception):  # an import that fails is reported when an engine is built
        import quire.engine.build  # noqa: F401


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], import_engine))
