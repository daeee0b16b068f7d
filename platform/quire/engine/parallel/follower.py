"""A rank other than the first: loads its part of the model, and does what the leader tells it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from quire.engine.adapters.attached_runtimes import AttachedRuntimes
from quire.engine.build import plugin_context
from quire.engine.loading.load import load_model
from quire.engine.multimodal.embeddings import MultimodalEmbeddings
from quire.engine.parallel.adapters.adapter_reads import ReadingThreads
from quire.engine.parallel.adapters.followed_adapters import FollowedAdapters
from quire.engine.parallel.channel import Channel
from quire.engine.parallel.divided_tables import table_rows
from quire.engine.parallel.following_runner import FollowingRunner
from quire.engine.parallel.group import model_digest
from quire.engine.parallel.messages import (
    AcquireSlot,
    AdapterRead,
    Beat,
    BuildRunner,
    ComputeTables,
    EndRank,
    EndRows,
    RankFailed,
    RankLoaded,
    RankReady,
    ReadAdapter,
    ReleaseAdapter,
    ReleaseSlot,
    ResetRunner,
    RunPlan,
    RunRow,
    StartRank,
    Total,
)
from quire.engine.parallel.stages.following_runner import StagedFollowingRunner
from quire.engine.parallel.stages.position import RankPosition
from quire.engine.parallel.stages.wires import Group
from quire.engine.pooling.poolers import Poolers
from quire.engine.speculation.hidden_tap import HiddenTap
from quire.errors import QuireError, StartupError
from quire.isolation.isolated_calls import IsolatedCalls
from quire.records import Registry
from quire_models.loading.checkpoint import raw_config
from quire_models.sharding.stage_flow import StageFailed, StageFlow

log = logging.getLogger(__name__)

BEAT_S = 1.0
"""Interval of the signs of life."""

READERS = 2
"""Threads that read adapters."""


class Follower:
    """One rank. flow: from stage to stage, None with one stage. lost: called when the leader is gone, with its last
    message if it has said that it ends.
    """

    def __init__(
        self,
        channel: Channel,
        group: Group,
        flow: StageFlow | None,
        start: StartRank,
        registry: Registry,
        lost: Callable[[EndRank | None], None],
    ) -> None:
        self._channel, self._start, self._registry, self._lost = channel, start, registry, lost
        self._group, self._flow = group, flow
        self._position = RankPosition.from_config(start.config, start.rank)
        self._commands: SimpleQueue[Any] = SimpleQueue()
        self._readers = ThreadPoolExecutor(READERS, "adapter-reader")
        self._ended, self._has_adapters = threading.Event(), threading.Event()
        self._isolated = IsolatedCalls(start.config.lora_load_timeout_s)
        self._runner: FollowingRunner | None = None
        self._threads = ReadingThreads(channel.send)

    def run(self) -> bool:
        """Serve until the leader is gone, or this rank cannot go on; whether that is because it could not start."""
        is_startup = False
        threads = [threading.Thread(target=work, daemon=True) for work in (self._receive, self._beat)]
        for thread in threads:
            thread.start()
        try:
            self._load()
            while (command := self._commands.get()) is not None:
                self._do(command)
        except Exception as error:
            is_startup = isinstance(error, StartupError)
            message = error.message if isinstance(error, QuireError) else f"{type(error).__name__}: {error}"
            log.error("Rank %d cannot go on: %s", self._start.rank, message, exc_info=not is_startup)
            with suppress(OSError):  # the leader is gone
                self._channel.send(RankFailed(message, is_startup))
            self._end_waits()
        finally:
            self._ended.set()
            self._has_adapters.set()
            self._readers.shutdown(wait=False, cancel_futures=True)
            self._isolated.close()
            self._channel.close()
        return is_startup

    def _load(self) -> None:
        start = self._start
        torch.set_num_threads(start.threads)
        add_up, whole_groups = self._threads.add_up, start.whole_groups
        shard = self._position.shard(start.config, self._group, self._flow, add_up, whole_groups)
        self._loaded = load_model(start.config, self._registry, shard=shard)
        config_json = raw_config(Path(self._loaded.info.folder))
        context = partial(plugin_context, self._loaded, config_json, start.config, self._registry, None)
        runtimes = AttachedRuntimes(
            self._registry,
            lambda plugin: replace(context(plugin), in_subprocess=self._isolated),
            self._loaded.module,
        )
        self._adapters = FollowedAdapters(runtimes, self._threads)
        self._has_adapters.set()
        self._channel.send(RankLoaded(model_digest(self._loaded), self._loaded.weight_bytes))

    def _do(self, command: Any) -> None:
        match command:
            case RunPlan():
                self._run(command)
            case RunRow():
                self._run_row(command)
            case EndRows():
                self._end_rows(command)
            case AcquireSlot() | ReleaseSlot() | ReleaseAdapter():
                self._adapters.do(command)
            case ResetRunner():
                assert self._runner is not None
                self._runner.reset()
            case ComputeTables():
                self._compute_tables(command)
            case BuildRunner():
                self._runner = self._build(command)
                self._channel.send(RankReady())

    def _run(self, command: RunPlan) -> None:
        """A step that fails here fails on the leader too: it begins the next attempt, or reports the failure."""
        assert self._runner is not None
        self._adapters.place(command.adapters)
        with self._plan(command.number, f"a step of {command.plan.num_tokens} tokens"):
            if isinstance(self._runner, StagedFollowingRunner):
                self._runner.run_plan(command)
            else:
                self._runner.launch(command.plan)
        self._adapters.forget(command.plan.ended)

    def _run_row(self, command: RunRow) -> None:
        assert isinstance(self._runner, StagedFollowingRunner), "rows are of a model in stages"
        with self._plan(command.number, f"row {command.row} of a step"):
            self._runner.run_row(command)

    def _end_rows(self, command: EndRows) -> None:
        assert isinstance(self._runner, StagedFollowingRunner), "rows are of a model in stages"
        with self._plan(command.number, "the end of a step"):
            self._group.begin()
            self._runner.end_rows(command.plan)

    @contextmanager
    def _plan(self, number: int, what: str) -> Iterator[None]:
        """Meanwhile a plan is computed; what fails is logged, and the next stage learns of it."""
        self._group.start_plan(number)
        if self._flow is not None:
            self._flow.start_plan(number)
        try:
            yield
        except Exception as error:
            log.exception("Rank %d: %s failed", self._start.rank, what)
            if self._flow is not None:
                self._flow.fail(f"{error}" if isinstance(error, StageFailed) else f"{type(error).__name__}: {error}")
        if self._flow is not None:
            self._flow.forget_before(number + 1)

    @torch.inference_mode()
    def _compute_tables(self, command: ComputeTables) -> None:
        """What fails here fails on the leader too, where it costs drafts."""
        module = self._loaded.module
        is_last = module.stage is None or module.stage.is_last
        with self._plan(command.number, "a drafter's product"):
            self._group.begin()
            if command.ids is not None:
                table_rows(module, self._flow, command.ids)
            if command.hidden is not None and is_last:
                module.logits(command.hidden)

    def _build(self, command: BuildRunner) -> FollowingRunner:
        loaded, config, sizes = self._loaded, self._start.config, command.sizes
        mapping = self._adapters.mapping
        towers = MultimodalEmbeddings.from_model(loaded, self._registry, mapping, config)
        poolers = Poolers(loaded.pooling.poolers, loaded.module.heads, loaded.dtype, config.batch_invariant)
        nothing: Any = _NoGrammars()
        made = FollowingRunner if self._flow is None else StagedFollowingRunner
        tap = None if command.reads is None else HiddenTap(command.reads, loaded)
        return made(
            loaded, sizes, nothing, nothing, mapping, towers, poolers, batch_invariant=config.batch_invariant, tap=tap
        )

    def _end_waits(self) -> None:
        """Let what waits for other ranks fail. Any thread may call it."""
        self._group.fail()
        if self._flow is not None:
            self._flow.close()

    def _receive(self) -> None:
        """In a thread: queue the commands. Adapters are read beside the steps."""
        last: EndRank | None = None
        while True:
            try:
                command = self._channel.receive()
            except EOFError:
                self._lost(last)
                self._end_waits()
                self._commands.put(None)
                return
            if isinstance(command, EndRank):
                last = command
                continue
            if isinstance(command, ReadAdapter):
                self._readers.submit(self._read, command)
            elif isinstance(command, Total):
                if command.error is not None or command.first_rank == self._position.group.start:
                    self._threads.take(command)
            else:
                self._commands.put(command)

    def _read(self, command: ReadAdapter) -> None:
        self._has_adapters.wait()  # the leader may have loaded the model before this rank has
        if self._ended.is_set():
            return
        error = self._adapters.read(command)
        with suppress(OSError):  # the leader is gone
            self._channel.send(AdapterRead(command.handle, error))

    def _beat(self) -> None:
        """In a thread: show that this process is not frozen."""
        with suppress(OSError):  # the leader is gone
            while not self._ended.wait(BEAT_S):
                self._channel.send(Beat())


class _NoGrammars:
    """Stands for grammars and logits processors, which a follower has none of."""

    constraints = None
