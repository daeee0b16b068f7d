"""The process of a rank other than the first: `quire.engine.parallel.launch` starts it as
`python -m quire.engine_process.ranks.process <socket> <wires>`, with a descriptor and `Wires` as JSON.

It exits when the leader at the other end of the socket is gone, and the system kills it, even if it is frozen, when the
thread that has started it ends.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import socket
import sys

from quire.engine.parallel.channel import Channel
from quire.engine.parallel.follower import Follower
from quire.engine.parallel.messages import StartRank
from quire.engine.parallel.stages.position import RankPosition
from quire.engine.parallel.stages.wires import Wires
from quire.hooks import registry
from quire.isolation.module_process import ignore_signals
from quire.log_format import log_to_stderr

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


def main(connection: str, wires: str) -> int:
    """Serve the leader; returns the exit status."""
    ignore_signals()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    own = Wires(**json.loads(wires))
    for inherited in (int(connection), *own.descriptors):
        os.set_inheritable(inherited, False)
    channel = Channel(socket.socket(fileno=int(connection)))
    try:
        start = channel.receive()
    except EOFError:
        return 0
    assert isinstance(start, StartRank), start
    log_to_stderr(logging.getLevelName(start.log_level).lower())
    sys.path[:] = start.sys_path
    found = registry.load(list(start.plugins or ()), start.options)
    group = own.group(RankPosition.from_config(start.config, start.rank), start.threads)
    Follower(channel, group, own.flow(), start, found, lost=lambda _: os._exit(0)).run()
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
