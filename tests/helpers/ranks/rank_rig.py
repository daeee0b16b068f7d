"""An engine on several ranks and one on a single rank, for the same requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from engine_rig import Rig, rig_of
from thread_ranks import launch_thread

from quire.records import Registry

T = TypeVar("T")


def on_one_and_two(folder: Path, found: Registry, work: Callable[[Rig], T], size: int = 2, **settings: Any) -> list[T]:
    """What `work` returns for an engine with one rank, and for one with `size` ranks."""
    results = []
    for ranks in (1, size):
        with rig_of(folder, found, launch=launch_thread, tensor_parallel_size=ranks, **settings) as rig:
            results.append(work(rig))
    return results
