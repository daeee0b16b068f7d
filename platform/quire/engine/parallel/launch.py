"""Starts ranks as processes of their own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass, replace

from quire.engine.parallel.channel import Channel
from quire.engine.parallel.messages import StartRank
from quire.engine.parallel.spawn import start_rank
from quire.engine.parallel.stages.wires import Wires
from quire.records import Registry

MODULE = "quire.engine_process.ranks.process"
"""What the process of a rank of this machine runs."""


@dataclass(frozen=True, eq=False)
class RankProcess:
    """A process and the connection to it."""

    process: subprocess.Popen[bytes]
    channel: Channel

    def end(self) -> None:
        """Kill it, and wait until it is gone."""
        self.process.kill()
        self.process.wait()


def launch_process(start: StartRank, wires: Wires, registry: Registry) -> RankProcess:
    """Start a rank, which loads the plugins of `registry` by their names, and gets the descriptors of `wires`."""
    ours, theirs = socket.socketpair()
    number = theirs.fileno()
    with theirs:
        try:
            words = [str(number), json.dumps(asdict(wires))]
            process = start_rank(MODULE, words, (number, *wires.descriptors))
        except BaseException:
            ours.close()
            raise
    found = RankProcess(process, Channel(ours))
    found.channel.send(replace(start.described(registry), sys_path=tuple(sys.path)))
    return found
