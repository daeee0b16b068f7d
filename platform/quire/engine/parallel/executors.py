"""Ways of starting the ranks of a model: what `--distributed-executor-backend` names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from quire.engine.parallel.followers import Launched
from quire.engine.parallel.group import group_memory, rank_group
from quire.engine.parallel.launch import launch_process
from quire.engine.parallel.messages import StartRank
from quire.engine.parallel.nodes.joined_ranks import JoinedRanks, start_process
from quire.engine.parallel.nodes.place import Place, place_of
from quire.records import Executor, ExecutorContext, Registry
from quire.settings.model_config import ModelConfig
from quire.settings.rank_config import EXECUTORS
from quire_kernels.groups.shared_memory import SharedMemoryGroup

Launch = Callable[[StartRank, int, Registry], Launched]
"""Starts a rank. Arguments: its first message, a descriptor of the group's memory, the leader's registry."""

Started = tuple[SharedMemoryGroup, Mapping[int, Launched]]
"""The leader's end of the group, and the other ranks by their numbers."""


class RankExecutor(Protocol):
    """local: how many ranks this machine has, the first one included."""

    @property
    def local(self) -> int: ...

    def start(self, first: StartRank, registry: Registry) -> Started:
        """Start all other ranks. first: as for the first rank, which is in this process. Raises ConfigError."""
        ...


@dataclass(frozen=True)
class LocalRanks:
    """Ranks of this machine, which share memory. local: their number. launch: starts one."""

    local: int
    launch: Launch

    def start(self, first: StartRank, registry: Registry) -> Started:
        descriptor, memory = group_memory(first.size, first.threads)
        found: dict[int, Launched] = {}
        try:
            for rank in range(1, first.size):
                found[rank] = self.launch(replace(first, rank=rank), descriptor, registry)
        except BaseException:
            for follower in found.values():
                follower.channel.close()
                follower.end()
            raise
        finally:
            os.close(descriptor)
        return rank_group(memory, 0, first.size, first.threads), found


def executor_of(
    config: ModelConfig, registry: Registry, environ: Mapping[str, str], launch: Launch | None = None
) -> RankExecutor:
    """What starts the ranks of a model. launch: starts a rank of this machine, None = as a process.

    Raises ConfigError: there is no such executor, or it finds no places for the ranks.
    """
    record = config.executor_record(registry)
    if record is not None:
        return _plugin_ranks(config, record, registry)
    place = place_of(config, environ)
    if place is not None:
        return JoinedRanks(place, start_process)
    return LocalRanks(config.tensor_parallel_size, launch or launch_process)


def _plugin_ranks(config: ModelConfig, record: Executor, registry: Registry) -> JoinedRanks:
    plugin = registry.plugin_of(EXECUTORS, record.name)
    size, timeout_s = config.tensor_parallel_size, config.distributed_timeout_s
    context = ExecutorContext(
        options=registry.options.get(plugin, {}), size=size, threads=torch.get_num_threads(), timeout_s=timeout_s
    )
    counter = registry.counter
    assert counter is not None, "a registry of loaded plugins counts calls"
    built = counter.call(plugin, record.build, context)
    place = Place(
        host=built.address,
        port=0,
        size=size,
        first=0,
        count=size,
        local=built.local,
        by_store=False,
        timeout_s=timeout_s,
    )
    return JoinedRanks(place, lambda program: counter.call(plugin, built.start, program))
