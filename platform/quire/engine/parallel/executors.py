"""Ways of starting the ranks of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from subprocess import Popen
from typing import NamedTuple, Protocol

from quire.engine.parallel.channel import Channel
from quire.engine.parallel.followers import Launched
from quire.engine.parallel.messages import StartRank
from quire.engine.parallel.nodes.addresses import listen
from quire.engine.parallel.nodes.gather import gather
from quire.engine.parallel.nodes.place import Place
from quire.engine.parallel.spawn import start_joining
from quire.engine.parallel.stages.position import RankPosition
from quire.engine.parallel.stages.sockets import flow_of, group_of
from quire.engine.parallel.stages.wires import Group, Wires, Wiring
from quire.records import Registry
from quire_models.sharding.stage_flow import StageFlow

Launch = Callable[[StartRank, Wires, Registry], Launched]
"""Starts a rank. Arguments: its first message, how it reaches the others, the leader's registry."""


class Started(NamedTuple):
    """group, flow: the leader's ends. followers: the other ranks by their numbers."""

    group: Group
    flow: StageFlow | None
    followers: Mapping[int, Launched]


class Executor(Protocol):
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
        own = RankPosition.of(first.config, 0)
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


@dataclass(frozen=True, eq=False)
class JoinedRank:
    """A rank that has joined. process: if this program has started it."""

    channel: Channel
    process: Popen[bytes] | None

    def end(self) -> None:
        """End the process, if there is one; others end with their connection."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True)
class JoinedRanks:
    """Ranks that join the first one, because they are on several machines, or torchrun starts them."""

    place: Place

    @property
    def local(self) -> int:
        return self.place.local

    def start(self, first: StartRank, registry: Registry) -> Started:
        place = self.place
        with ExitStack() as ending, listen(place) as listener:
            processes: dict[int, Popen[bytes]] = {}
            for rank in range(1, place.count):
                processes[rank] = start_joining(place, rank)
                ending.callback(processes[rank].wait)
                ending.callback(processes[rank].kill)
            gathered = gather(place, listener)
            own = RankPosition.of(first.config, 0)
            group, flow = group_of(own, gathered.connections), flow_of(own, gathered.connections)
            for rank, channel in gathered.channels.items():
                channel.send(replace(first.described(registry), rank=rank))
            ending.pop_all()
        joined = {rank: JoinedRank(each, processes.get(rank)) for rank, each in gathered.channels.items()}
        return Started(group, flow, joined)
