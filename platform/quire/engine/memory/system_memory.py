"""How much memory this process may still take, given the machine, its cgroups and its resource limits.

cgroup files: the kernel's admin-guide/cgroup-v2.rst (memory.max, memory.current, memory.stat) and cgroup-v1/memory.rst.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")

UNLIMITED = 1 << 60
"""Bytes; cgroup v1 writes about 2**63 for a group without a limit."""


def total_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Bytes that this process could take if nothing else ran: the machine's memory or the smallest limit."""
    limits = [limit for limit, _ in _cgroup_limits(proc, cgroups)]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        limits.append(soft)
    return min([_meminfo(proc).get("MemTotal", _physical()), *limits])


def free_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Bytes that this process can take now, counting caches that the kernel can drop; at least 0."""
    free = [_meminfo(proc).get("MemAvailable", _physical())]
    free += [limit - used for limit, used in _cgroup_limits(proc, cgroups)]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        free.append(soft - _address_space(proc))
    return max(0, min(free))


def _meminfo(proc: Path) -> dict[str, int]:
    """/proc/meminfo in bytes by name; empty where there is none."""
    try:
        lines = (proc / "meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines) if rest}


def _physical() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _address_space(proc: Path) -> int:
    pages = int((proc / "self" / "statm").read_text(encoding="ascii").split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _cgroup_limits(proc: Path, cgroups: Path) -> Iterator[tuple[int, int]]:
    """(limit, used without droppable caches) in bytes of each cgroup of this process that has a limit."""
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _limits_up(cgroups, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            yield from _limits_up(cgroups / "memory", path, *names)


def _limits_up(root: Path, path: str, limit_file: str, usage_file: str, cache: str) -> Iterator[tuple[int, int]]:
    """Limits from the group at `path` up to the root; in a container only the root may be visible."""
    group = root / path.strip("/")
    for folder in (group, *group.parents):
        if folder != root and root not in folder.parents:
            return
        try:
            limit = (folder / limit_file).read_text(encoding="ascii").strip()
            used = int((folder / usage_file).read_text(encoding="ascii"))
            stat = (folder / "memory.stat").read_text(encoding="ascii")
        except (OSError, ValueError):
            continue
        if limit != "max" and int(limit) < UNLIMITED:
            yield int(limit), used - _stat(stat, cache)


def _stat(text: str, name: str) -> int:
    return next((int(value) for key, _, value in (line.partition(" ") for line in text.splitlines()) if key == name), 0)
