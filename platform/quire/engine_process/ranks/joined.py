"""The process of a rank that joins the first one through a network: `python -m quire.engine_process.ranks.joined
<place> <rank>`, with a `Place` as JSON.

Exit status: 0 if the first rank has ended as it should, LOST if it is gone, 2 if it refuses this rank, or the rank
cannot start; then a sentence is logged. The system kills the process when the thread that has started it ends.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
from contextlib import suppress

from quire.engine.parallel.follower import Follower
from quire.engine.parallel.messages import EndRank, RankFailed, StartRank
from quire.engine.parallel.nodes.join import join
from quire.engine.parallel.nodes.place import Place
from quire.engine.parallel.nodes.statuses import LOST, REFUSED
from quire.engine.parallel.stages.position import RankPosition
from quire.engine.parallel.stages.sockets import flow_of, group_of
from quire.engine_process.ranks.process import PR_SET_PDEATHSIG
from quire.errors import QuireError
from quire.hooks import registry
from quire.isolation.module_process import ignore_signals
from quire.log_format import log_to_stderr

log = logging.getLogger("quire.ranks")


def main(place: str, rank: str) -> int:
    """Serve the first rank; returns the exit status."""
    ignore_signals()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return follow(place, rank)


def follow(place: str, rank: str) -> int:
    """Serve the first rank in a process of another program, which handles its own signals; returns the exit status."""
    log_to_stderr("info")
    found, own = Place(**json.loads(place)), int(rank)
    try:
        joined = join(found, own)
    except QuireError as error:
        log.critical("%s", error.message)
        return REFUSED
    try:
        start = joined.channel.receive()
    except EOFError:
        return LOST
    assert isinstance(start, StartRank), start
    log_to_stderr(logging.getLevelName(start.log_level).lower())
    try:
        plugins = registry.load(list(start.plugins or ()), start.options)
        position = RankPosition.from_config(start.config, own)
        group, flow = group_of(position, joined.connections), flow_of(position, joined.connections)
    except QuireError as error:
        log.critical("%s", error.message)
        with suppress(OSError):  # the first rank is gone
            joined.channel.send(RankFailed(error.message, is_startup=True))
        return REFUSED
    return REFUSED if Follower(joined.channel, group, flow, start, plugins, _end).run() else LOST


def _end(last: EndRank | None) -> None:
    """The first rank is gone, after its last message if it had one."""
    if last is not None and last.error is not None:
        log.critical("%s", last.error)
        os._exit(REFUSED)
    os._exit(LOST if last is None else 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
