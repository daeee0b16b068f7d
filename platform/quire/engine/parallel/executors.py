"""Ways of starting the ranks of a model: what `--distributed-executor-backend` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from quire.engine.parallel.followers import Launched, Started
from quire.engine.parallel.launch import launch_process
from quire.engine.parallel.messages import StartRank
from quire.engine.parallel.nodes.joined_ranks import JoinedRanks, start_process
from quire.engine.parallel.nodes.place import Place, place_of
from quire.engine.parallel.stages.position import RankPosition
from quire.engine.parallel.stages.wires import Wires, Wiring
from quire.records import Executor, ExecutorContext, Registry
from quire.settings.model_config import ModelConfig
from quire.settings.model_groups.rank_config import EXECUTORS

Launch = Callable[[StartRank, Wires, Registry], Launched]
"""Starts a rank. Arguments: its first message, how it reaches the others, the leader's registry."""


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
        found: dict[int, Launched] = {}
        own = RankPosition.from_config(first.config, 0)
        with Wiring(own.width, own.stages, first.threads) as wiring:
            try:
                for rank in range(1, first.size):
                    found[rank] = self.launch(replace(first, rank=rank), wiring[rank], registry)
            except BaseException:
                for follower in found.values():
                    follower.channel.close()
                    follower.end()
                raise
            wires = wiring[0].copies()
            return Started(wires.group(own, first.threads), wires.flow(), found)


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
    return LocalRanks(config.num_ranks, launch or launch_process)


def _plugin_ranks(config: ModelConfig, record: Executor, registry: Registry) -> JoinedRanks:
    plugin = registry.plugin_of(EXECUTORS, record.name)
    size, timeout_s = config.num_ranks, config.distributed_timeout_s
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
