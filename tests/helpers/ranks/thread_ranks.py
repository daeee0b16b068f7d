"""Ranks as threads of this process, in place of processes: quick to start, with any registry."""

from __future__ import annotations

import mmap
import os
import socket
import threading
from dataclasses import dataclass

from quire.engine.parallel.channel import Channel
from quire.engine.parallel.follower import Follower
from quire.engine.parallel.group import rank_group
from quire.engine.parallel.messages import StartRank
from quire.records import Registry


@dataclass(frozen=True, eq=False)
class RankThread:
    """A rank in a thread, which ends when its channel is closed."""

    channel: Channel
    thread: threading.Thread

    def end(self) -> None:
        self.thread.join()


def launch_thread(start: StartRank, memory: int, registry: Registry) -> RankThread:
    """A `quire.engine.parallel.leader.Launch`."""
    ours, theirs = map(Channel, socket.socketpair())
    shared = mmap.mmap(memory, os.fstat(memory).st_size)
    group = rank_group(shared, start.rank, start.size, start.threads)
    follower = Follower(theirs, group, start, registry, lost=lambda _: None)
    thread = threading.Thread(target=follower.run, name=f"rank {start.rank}", daemon=True)
    thread.start()
    return RankThread(ours, thread)
