"""What the system says of processes on this machine: their threads' states, their CPU time and their memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

STOPPED = frozenset("T")
"""A process that got SIGSTOP. One that is being debugged has another state, t."""

BUSY = frozenset("RD")
"""A thread that computes or waits for a core (R), or waits for a disk or for swapped memory (D)."""


def thread_states(pid: int) -> frozenset[str]:
    """The states of the threads of a process, as /proc names them; empty if it is gone or there is no /proc."""
    found = set()
    for fields in _stats(Path(f"/proc/{pid}/task")):
        found.add(fields[0])
    return frozenset(found)


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal, so that it does nothing until it is continued."""
    return thread_states(pid) == STOPPED


def cpu_seconds(pid: int) -> float | None:
    """CPU time that a process has used; None where /proc is missing."""
    fields = _fields(Path(f"/proc/{pid}/stat"))
    return None if fields is None else (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Bytes of memory that a process has now (RSS); 0 if it is gone or there is no /proc."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def descendants(pid: int) -> list[int]:
    """The children of a process, and theirs; empty where /proc does not tell."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, path.read_text().split()):
                found += [child, *descendants(child)]
    return found


def _stats(tasks: Path) -> Iterator[list[str]]:
    try:
        threads = list(tasks.iterdir())
    except OSError:
        return
    for thread in threads:
        fields = _fields(thread / "stat")
        if fields is not None:
            yield fields


def _fields(stat: Path) -> list[str] | None:
    """The fields from the state on; None if the process or thread is gone."""
    try:
        return stat.read_text().rpartition(")")[2].split()
    except OSError:
        return None
