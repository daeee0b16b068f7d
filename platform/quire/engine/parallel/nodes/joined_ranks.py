"""Ranks that join the first one through a network, wherever they are started."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from subprocess import Popen

from quire.engine.parallel.channel import Channel
from quire.engine.parallel.followers import Started
from quire.engine.parallel.messages import StartRank
from quire.engine.parallel.nodes.addresses import listen
from quire.engine.parallel.nodes.gather import gather
from quire.engine.parallel.nodes.place import Place
from quire.engine.parallel.spawn import JOINING_MODULE, start_rank
from quire.engine.parallel.stages.position import RankPosition
from quire.engine.parallel.stages.sockets import flow_of, group_of
from quire.isolation.module_process import OPENMP_ENV
from quire.records import RankProgram, Registry, StartedRank

NOT_JOINED = "Rank {rank} has ended before it joined the first one: {problem}"


@dataclass(frozen=True, eq=False)
class ProcessOfRank:
    """A `StartedRank` that is a process of this machine."""

    process: Popen[bytes]

    def problem(self) -> str | None:
        """The exit status, as a sentence."""
        status = self.process.poll()
        return None if status is None else f"its process has the exit status {status}, and has logged why."

    def end(self) -> None:
        """Kill it, and wait until it is gone."""
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True, eq=False)
class JoinedRank:
    """A rank that has joined. started: None if another program has started it, which ends it with its connection."""

    channel: Channel
    started: StartedRank | None

    def end(self) -> None:
        """End the process, if this program has started it."""
        if self.started is not None:
            self.started.end()


@dataclass(frozen=True, eq=False)
class JoinedRanks:
    """A `RankExecutor`. place: which ranks `launch` starts; port 0: a free one."""

    place: Place
    launch: Callable[[RankProgram], StartedRank]

    @property
    def local(self) -> int:
        return self.place.local

    def start(self, first: StartRank, registry: Registry) -> Started:
        place = self.place
        started: dict[int, StartedRank] = {}

        def problem() -> str | None:
            found = {rank: each.problem() for rank, each in started.items()}
            return next((NOT_JOINED.format(rank=r, problem=why) for r, why in found.items() if why is not None), None)

        with ExitStack() as ending, listen(place) as listener:
            if not place.port:
                place = replace(place, port=listener.getsockname()[1])
            for rank in range(1, place.count):
                started[rank] = self.launch(program_of(place, rank))
                ending.callback(started[rank].end)
            gathered = gather(place, listener, problem)
            own = RankPosition.from_config(first.config, 0)
            group, flow = group_of(own, gathered.connections), flow_of(own, gathered.connections)
            for rank, channel in gathered.channels.items():
                channel.send(replace(first.described(registry), rank=rank))
            ending.pop_all()
        joined = {rank: JoinedRank(each, started.get(rank)) for rank, each in gathered.channels.items()}
        return Started(group, flow, joined)


def program_of(place: Place, rank: int) -> RankProgram:
    """What the process of a rank runs. place: with the port at which the first rank listens."""
    return RankProgram(rank, JOINING_MODULE, (json.dumps(asdict(place)), str(rank)), OPENMP_ENV)


def start_process(program: RankProgram) -> ProcessOfRank:
    """Start it on this machine."""
    return ProcessOfRank(start_rank(program.module, program.arguments, ()))
