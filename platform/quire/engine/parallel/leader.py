"""The first rank's side of a group: starts the followers, sends them commands, and notices when one is lost."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

import torch

from quire import hub
from quire.engine.adapters.attached_runtimes import AttachedRuntimes
from quire.engine.loading.load import LoadedModel
from quire.engine.memory.ledger import MemoryBudget, MemoryUse
from quire.engine.parallel.channel import Channel
from quire.engine.parallel.group import group_memory, model_digest, rank_group
from quire.engine.parallel.launch import launch_process
from quire.engine.parallel.messages import (
    AdapterRead,
    BuildRunner,
    PlacedAdapter,
    RankFailed,
    RankReady,
    ReadAdapter,
    ResetRunner,
    RunPlan,
    StartRank,
)
from quire.engine.parallel.mirrored_runtime import MirroredRuntime
from quire.engine.parallel.one_rank import OneRank
from quire.engine.runner.sizes import RunnerSizes
from quire.errors import BadRequest, CheckpointError, ConfigError, QuireError
from quire.records import Registry
from quire.settings.model_config import ModelConfig
from quire.types import AdapterRef, Plan
from quire_kernels.groups.group import RankLost
from quire_models.sharding.model import ModelShard
from quire_models.sharding.rank import Rank

if TYPE_CHECKING:
    from quire.engine.speculation.speculation import Speculation

log = logging.getLogger(__name__)

SILENCE_S = 5.0
"""A follower that shows no sign of life for so long, once it is ready, is ended."""

START_SILENCE_S = 120.0
"""The same while it imports and loads."""

CHECK_S = 0.5
"""Interval of the checks for signs of life."""


class Launched(Protocol):
    """A rank that was started."""

    @property
    def channel(self) -> Channel: ...

    def end(self) -> None:
        """End it at once, and wait until it is gone."""
        ...


Launch = Callable[[StartRank, int, Registry], Launched]
"""Starts a rank. Arguments: its first message, a descriptor of the group's memory, the leader's registry."""


class Leader:
    """The followers of one model. shard: the leader's own part. threads: of each rank."""

    def __init__(self, config: ModelConfig, registry: Registry, launch: Launch) -> None:
        self.size = config.tensor_parallel_size
        self.threads = max(1, torch.get_num_threads() // self.size)
        _check(config)
        self._descriptor, memory = group_memory(self.size, self.threads)
        self._group = rank_group(memory, 0, self.size, self.threads)
        self.shard = ModelShard(Rank(0, self.size, config.enable_expert_parallel), self._group)
        self._number, self._handles = 0, count(1)
        self._failure: str | None = None
        self._startup_error: QuireError | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._digests: dict[int, str] = {}
        self._heard: dict[int, float] = {}
        self._reading: dict[int, tuple[Future[None], set[int], list[str]]] = {}
        self._followers: dict[int, Launched] = {}
        self._launched: Future[None] = Future()
        # the processes end with the thread that has started them, so that none is left over if this process is killed
        self._watch = threading.Thread(target=self._run, args=(config, registry, launch), name="ranks", daemon=True)
        self._watch.start()
        self._launched.result()

    @property
    def has_failed(self) -> bool:
        """Whether a rank is lost, so that no step can be computed any more."""
        return self._failure is not None

    def own_part(self, budget: MemoryBudget) -> MemoryBudget:
        """What one rank may take of the memory that all ranks share."""
        parts = {name: value // self.size for name, value in vars(budget).items()}
        return replace(budget, **parts)

    def of_all(self, use: MemoryUse) -> MemoryUse:
        """What all ranks have reserved together, if each has as much as this one."""
        return replace(use, **{name: value * self.size for name, value in vars(use).items()})

    def mirror(self, runtimes: AttachedRuntimes) -> None:
        """Let all ranks have the adapters of these runtimes."""
        runtimes.replace_built(lambda built, index: MirroredRuntime(built, index, self, self._handles))

    def check_drafter(self, speculation: Speculation) -> None:
        """Raise ConfigError for a drafter that reads the model's own hidden states, which only one rank would do."""
        if speculation.reads_hidden is not None:
            raise ConfigError(
                f"--tensor-parallel-size {self.size}: drafters that read the model's hidden states (EAGLE, MTP, "
                "Medusa) work on one rank only; use ngram or a draft model."
            )

    # --- commands -----------------------------------------------------------------------------------

    def build_runners(self, sizes: RunnerSizes, loaded: LoadedModel) -> None:
        """Let all ranks allocate their caches, and wait until they have. Raises what has kept one from it."""
        self.send(BuildRunner(sizes))
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or len(self._digests) == self.size - 1)
        if self._failure is not None:
            raise self._startup_error or CheckpointError(f"The model could not be loaded on all ranks: {self._failure}")
        own = model_digest(loaded)
        others = [rank for rank, digest in self._digests.items() if digest != own]
        if others:
            raise CheckpointError(
                f"Rank {others[0]} has other weights than the first one: the files of {loaded.info.folder} differ."
            )

    def send_plan(self, plan: Plan, adapters: Mapping[AdapterRef, PlacedAdapter]) -> None:
        """Let all followers compute a plan. Raises RankLost if one is gone."""
        if self._failure is not None:
            raise RankLost(self._failure, lasting=True)
        self._number += 1
        self._group.start_plan(self._number)
        if any(chunk.draft_probs is not None for chunk in plan.chunks):
            plan = replace(plan, chunks=tuple(replace(chunk, draft_probs=None) for chunk in plan.chunks))
        self.send(RunPlan(self._number, plan, adapters))

    def reset(self) -> None:
        """Let all followers drop every sequence."""
        self.send(ResetRunner())

    def read_adapter(self, command: ReadAdapter) -> Future[None]:
        """Let all followers read an adapter; done when all have. The Future raises BadRequest if one cannot use it."""
        done: Future[None] = Future()
        with self._changed:
            self._reading[command.handle] = done, set(self._followers), []
        self.send(command)
        if self._failure is not None:
            self._end_reading(self._failure)
        return done

    def send(self, command: Any) -> None:
        """Send a command to all followers; the group fails if one cannot get it."""
        for rank, follower in self._followers.items():
            try:
                follower.channel.send(command)
            except OSError as error:
                self.fail(f"rank {rank} does not take commands: {error}")

    # --- life -----------------------------------------------------------------------------------------

    def fail(self, message: str, error: QuireError | None = None) -> None:
        """Give the group up: every wait for another rank, and every later step, fails."""
        with self._changed:
            if self._failure is not None or self._closing:
                return
            self._failure, self._startup_error = message, error
            self._changed.notify_all()
        log.error("The ranks of this model cannot go on: %s", message)
        self._group.fail()
        self._end_reading(message)

    def _end_reading(self, message: str) -> None:
        with self._changed:
            waiting, self._reading = self._reading, {}
        for done, _, _ in waiting.values():
            if not done.done():
                done.set_exception(BadRequest(f"The adapter could not be read on all ranks: {message}", "lora_path"))

    def close(self) -> None:
        """End the followers, and wait until they are gone."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._watch.join()

    def _run(self, config: ModelConfig, registry: Registry, launch: Launch) -> None:
        """In a thread: start the followers, and watch over them until `close`."""
        try:
            for rank in range(1, self.size):
                start = StartRank(config=config, rank=rank, size=self.size, threads=self.threads)
                self._heard[rank] = time.monotonic()
                self._followers[rank] = launch(start, self._descriptor, registry)
        except BaseException as error:
            self._end_all()
            self._launched.set_exception(error)
            return
        for rank, follower in self._followers.items():
            threading.Thread(
                target=self._listen, args=(rank, follower.channel), name=f"rank-{rank}", daemon=True
            ).start()
        self._launched.set_result(None)
        with self._changed:
            while not self._closing and self._failure is None:
                self._changed.wait(CHECK_S)
                silent = self._silent()
                if silent is not None:
                    threading.Thread(target=self.fail, args=(f"rank {silent} does not answer",)).start()
        if not self._closing:
            self._end_all()
            with self._changed:
                self._changed.wait_for(lambda: self._closing)
        self._end_all()

    def _silent(self) -> int | None:
        now = time.monotonic()
        for rank, heard in self._heard.items():
            if now - heard > (SILENCE_S if rank in self._digests else START_SILENCE_S):
                return rank
        return None

    def _end_all(self) -> None:
        for follower in self._followers.values():
            follower.channel.close()
            follower.end()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _listen(self, rank: int, channel: Channel) -> None:
        """In a thread: what one follower says."""
        while True:
            try:
                message = channel.receive()
            except EOFError:
                self.fail(f"rank {rank} has ended")
                return
            self._heard[rank] = time.monotonic()
            match message:
                case RankReady():
                    with self._changed:
                        self._digests[rank] = message.digest
                        self._changed.notify_all()
                case RankFailed():
                    error = CheckpointError(message.message) if message.is_startup else None
                    self.fail(f"rank {rank}: {message.message}", error)
                case AdapterRead():
                    self._adapter_read(rank, message)

    def _adapter_read(self, rank: int, message: AdapterRead) -> None:
        with self._changed:
            entry = self._reading.get(message.handle)
            if entry is None:
                return
            done, waiting, errors = entry
            waiting.discard(rank)
            errors += [message.error] if message.error else []
            if waiting:
                return
            del self._reading[message.handle]
        if errors:
            done.set_exception(BadRequest(errors[0], "lora_path"))
        else:
            done.set_result(None)


def start_ranks(config: ModelConfig, registry: Registry, launch: Launch | None) -> Leader | OneRank:
    """Start the other ranks of a model, if it has some. Raises ConfigError."""
    if config.tensor_parallel_size == 1:
        return OneRank()
    hub.locate(config.model, config)  # downloads it once, before all ranks ask for it
    return Leader(config, registry, launch or launch_process)


def _check(config: ModelConfig) -> None:
    """Raise ConfigError for settings that do not work with several ranks; warn where they are slow."""
    size = config.tensor_parallel_size
    if config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available()):
        raise ConfigError(
            f"--tensor-parallel-size {size}: several GPUs are not supported yet; use --device cpu, or one GPU."
        )
    cores = len(os.sched_getaffinity(0))
    if size > cores:
        log.warning("--tensor-parallel-size %d: there are only %d cores, so ranks wait for each other", size, cores)
