"""The first rank's side of a group: starts the followers, sends them commands, and gives up if one is lost."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import torch

from quire.engine.adapters.attached_runtimes import AttachedRuntimes
from quire.engine.loading.load import LoadedModel
from quire.engine.memory.ledger import MemoryBudget, MemoryUse
from quire.engine.parallel.adapters.adapter_reads import AdapterReads
from quire.engine.parallel.adapters.mirrored_runtime import MirroredRuntime
from quire.engine.parallel.check_division import check_division
from quire.engine.parallel.divided_tables import DividedTables
from quire.engine.parallel.executors import Launch, RankExecutor, executor_of
from quire.engine.parallel.followers import Followers, Launched
from quire.engine.parallel.group import model_digest
from quire.engine.parallel.messages import (
    AdapterRead,
    Addend,
    BuildRunner,
    ComputeTables,
    EndRank,
    EndRows,
    PlacedAdapter,
    RankFailed,
    RankLoaded,
    RankReady,
    ResetRunner,
    RunPlan,
    RunRow,
    StartRank,
)
from quire.engine.parallel.one_rank import OneRank
from quire.engine.parallel.stages.caches import with_largest_caches
from quire.engine.parallel.stages.position import RankPosition, needs_whole_groups
from quire.engine.runner.sizes import RunnerSizes
from quire.errors import CheckpointError, ConfigError, QuireError
from quire.records import ReadsHidden, Registry
from quire.settings.model_config import ModelConfig
from quire.types import AdapterRef, Plan
from quire_kernels.groups.group import RankLost
from quire_models.sharding.stage_flow import StageFlow

log = logging.getLogger(__name__)


class Leader:
    """The followers of one model. executor: starts them. shard: the leader's own part. threads: of each rank.

    flow: brings hidden states from the other stages, None with one stage.
    """

    def __init__(self, config: ModelConfig, registry: Registry, executor: RankExecutor) -> None:
        self.size, self._local = config.num_ranks, executor.local
        self.threads = max(1, torch.get_num_threads() // self._local)
        _warn_of_few_cores(self._local)
        self._number, self._handles = 0, count(1)
        self._failure: str | None = None
        self._startup_error: QuireError | None = None
        self._refusal: str | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._loaded: dict[int, RankLoaded] = {}
        self._num_ready = 0
        self.flow: StageFlow | None = None
        self._reads = AdapterReads(self.size, config.tensor_parallel_size, self.send)
        self._followers: Followers | None = None

        whole_groups = needs_whole_groups(config.attention_implementation, registry)

        def start() -> Mapping[int, Launched]:
            first = StartRank(config=config, rank=0, size=self.size, threads=self.threads, whole_groups=whole_groups)
            self._group, self.flow, found = executor.start(first, registry)
            return found

        self._followers = Followers(start, self._take, self.fail)
        self._position = RankPosition.from_config(config, 0)
        self.shard = self._position.shard(config, self._group, self.flow, self._reads.threads.add_up, whole_groups)

    @property
    def has_failed(self) -> bool:
        """Whether a rank is lost, so that no step can be computed any more."""
        return self._failure is not None

    def own_part(self, budget: MemoryBudget) -> MemoryBudget:
        """What one rank may take of the memory that all ranks of this machine share."""
        return budget.part_of_ranks(self._local)

    def for_caches(self, loaded: LoadedModel) -> LoadedModel:
        """The model as the size of its caches is planned: what a page and a state take at the stage that has most."""
        return loaded if self.flow is None else with_largest_caches(loaded, self._position.stages)

    def of_all(self, use: MemoryUse) -> MemoryUse:
        """What all ranks of this machine have reserved together, if each has as much as this one."""
        return replace(use, **{name: value * self._local for name, value in vars(use).items()})

    def mirror(self, runtimes: AttachedRuntimes) -> None:
        """Let all ranks have the adapters of these runtimes."""
        runtimes.replace_built(
            lambda built, index: MirroredRuntime(built, index, self.send, self._reads, self._handles)
        )

    def for_drafter(self, loaded: LoadedModel) -> LoadedModel:
        """The model as a drafter uses it: the description of the whole one, and whole results of its tables."""
        module: Any = DividedTables(loaded.module, self._begin_tables, self.flow)
        shard = loaded.module.shard
        assert shard is not None, "it is divided"
        whole: Any = shard.whole
        return replace(loaded, module=module, decoder=whole.part)

    # --- commands -----------------------------------------------------------------------------------

    def build_runners(self, sizes: RunnerSizes, loaded: LoadedModel, reads: ReadsHidden | None) -> None:
        """Let all ranks allocate their caches, and wait until they have. Raises what has kept one from it.

        reads: what a drafter reads. Ranks that compute sums together compute all of it: for the same tokens.
        """
        self._await_models(loaded)
        self.send(BuildRunner(sizes, reads))
        self._await(lambda: self._num_ready == self.size - 1)

    def _await_models(self, loaded: LoadedModel) -> None:
        """Wait until all followers have loaded the model. Raises CheckpointError if one has loaded another one."""
        self._await(lambda: len(self._loaded) == self.size - 1)
        own = model_digest(loaded)
        others = [rank for rank, found in self._loaded.items() if found.digest != own]
        if others:
            self._refusal = (
                f"Rank {others[0]} has other weights than the first one: the files of {loaded.info.folder} differ."
            )
            raise CheckpointError(self._refusal)

    def _await(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or condition())
        if self._failure is not None:
            raise self._startup_error or CheckpointError(f"The model could not be loaded on all ranks: {self._failure}")

    def send_plan(self, plan: Plan, adapters: Mapping[AdapterRef, PlacedAdapter], by_rows: bool = False) -> int:
        """Let all followers compute a plan, whose number is returned. Raises RankLost if one is gone."""
        if any(chunk.draft_probs is not None for chunk in plan.chunks):
            plan = replace(plan, chunks=tuple(replace(chunk, draft_probs=None) for chunk in plan.chunks))
        self.send(RunPlan(number := self._next_number(), plan, adapters, by_rows))
        return number

    def send_row(self, plan: int, row: int) -> int:
        """Let all followers compute a row of a plan by itself; returns a number as of a plan. Raises RankLost."""
        self.send(RunRow(number := self._next_number(), plan, row))
        return number

    def end_rows(self, plan: int) -> None:
        """Let all ranks go on behind the rows of a plan. Raises RankLost."""
        self.send(EndRows(number := self._next_number(), plan))
        self.begin_plan(number)
        self._group.begin()

    def begin_plan(self, number: int) -> None:
        """Compute this one of the plans that were sent from now on."""
        self._group.start_plan(number)
        if self.flow is not None:
            self.flow.start_plan(number)

    def _begin_tables(self, command: ComputeTables) -> None:
        """Let all followers take part in what a drafter computes. Raises RankLost."""
        self._await(lambda: len(self._loaded) == self.size - 1)
        self.send(replace(command, number=(number := self._next_number())))
        self.begin_plan(number)
        self._group.begin()

    @property
    def next_number(self) -> int:
        """The number of the next plan or row that is sent."""
        return self._number + 1

    def _next_number(self) -> int:
        if self._failure is not None:
            raise RankLost(self._failure, lasting=True)
        self._number += 1
        return self._number

    def reset(self) -> None:
        """Let all followers drop every sequence."""
        self.send(ResetRunner())

    def send(self, command: Any) -> None:
        """Send a command to all followers; the group fails if one cannot get it."""
        if self._followers is not None:
            self._followers.send(command)

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
        if self.flow is not None:
            self.flow.close()
        self._reads.end(message)
        if self._followers is not None:
            self._followers.end()

    def close(self) -> None:
        """End the followers, and wait until they are gone."""
        with self._changed:
            self._closing = True
        if self._followers is not None:
            if not self.has_failed:
                self.send(EndRank(self._refusal))
            if self.flow is not None:
                self.flow.close()
            self._followers.close()

    def _take(self, rank: int, message: Any) -> None:
        """In a thread for each rank: what a follower says."""
        match message:
            case RankLoaded() | RankReady():
                with self._changed:
                    if isinstance(message, RankLoaded):
                        self._loaded[rank] = message
                    else:
                        self._num_ready += 1
                    self._changed.notify_all()
            case RankFailed():
                error = CheckpointError(message.message) if message.is_startup else None
                self.fail(f"rank {rank}: {message.message}", error)
            case AdapterRead():
                self._reads.read(rank, message)
            case Addend():
                self._reads.add(rank, message)


def start_ranks(config: ModelConfig, registry: Registry, launch: Launch | None) -> Leader | OneRank:
    """Start the other ranks of a model, if it has some. Raises ConfigError before, if it cannot have so many."""
    if config.num_ranks == 1:
        return OneRank()
    _check_device(config)
    check_division(config, registry)
    return Leader(config, registry, executor_of(config, registry, os.environ, launch))


def _check_device(config: ModelConfig) -> None:
    """Raise ConfigError for devices that several ranks cannot have."""
    if config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available()):
        raise ConfigError(f"{config.ranks_setting}: several GPUs are not supported yet; use --device cpu, or one GPU.")


def _warn_of_few_cores(local: int) -> None:
    cores = len(os.sched_getaffinity(0))
    if local > cores:
        log.warning("%d ranks of a model on %d cores: they wait for each other", local, cores)
