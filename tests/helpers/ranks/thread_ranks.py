"""Ranks as threads of this process, in place of processes: quick to start, with any registry."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass

from quire.engine.parallel.channel import Channel
from quire.engine.parallel.follower import Follower
from quire.engine.parallel.messages import StartRank
from quire.engine.parallel.stages.position import RankPosition
from quire.engine.parallel.stages.wires import Wires
from quire.records import Registry


@dataclass(frozen=True, eq=False)
class RankThread:
    """A rank in a thread, which ends when its channel is closed."""

    channel: Channel
    thread: threading.Thread

    def end(self) -> None:
        self.thread.join()


def launch_thread(start: StartRank, wires: Wires, registry: Registry) -> RankThread:
    """A `quire.engine.parallel.executors.Launch`."""
    ours, theirs = map(Channel, socket.socketpair())
    own = wires.copies()
    group = own.group(RankPosition.from_config(start.config, start.rank), start.threads)
    follower = Follower(theirs, group, own.flow(), start, registry, lost=lambda _: None)
    thread = threading.Thread(target=follower.run, name=f"rank {start.rank}", daemon=True)
    thread.start()
    return RankThread(ours, thread)
