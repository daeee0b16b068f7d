"""The command of a node without the first rank: a process for each of its ranks, new ones if the group starts again."""

from __future__ import annotations

import logging
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from quire.engine.parallel.nodes.place import Place
from quire.engine.parallel.nodes.statuses import LOST
from quire.engine.parallel.spawn import start_joining

log = logging.getLogger("quire.ranks")

STOPPING = (signal.SIGINT, signal.SIGTERM)


class _Stopped(Exception):
    """A signal asks the command to end."""


def follow(place: Place) -> int:
    """Run the ranks of `place` until the first rank ends, or a signal asks for it; returns the exit status.

    Only in the main thread.
    """
    ranks = range(place.first, place.first + place.count)
    processes: list[subprocess.Popen[bytes]] = []
    log.info("rank %s of %d follows %s:%d", ", ".join(map(str, ranks)), place.size, place.host, place.port)
    try:
        with _stopping():
            while True:
                processes = []
                for rank in ranks:
                    processes.append(start_joining(place, rank))
                ended = [process.wait() for process in processes]
                if not any(status == LOST or status < 0 for status in ended):
                    return max(ended)
                log.warning("the ranks of this model have ended; this node joins again")
    except _Stopped:
        return 0
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def _stopping() -> Iterator[None]:
    """Meanwhile, signals raise `_Stopped`."""

    def stop(number: int, frame: Any) -> None:
        raise _Stopped

    before = {number: signal.signal(number, stop) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
