"""An engine on several ranks and one on a single rank, for the same requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from engine_rig import Rig, rig_of
from thread_ranks import launch_thread

from quire.records import Registry

T = TypeVar("T")


TWO_RANKS = {"tensor_parallel_size": 2}
TWO_STAGES = {"pipeline_parallel_size": 2}
DIVIDED_GROUPS = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3}
"""Settings of a model of which two ranks have three query heads each, and both the second key-value head."""
WAYS = {"two ranks": TWO_RANKS, "two stages": TWO_STAGES}
"""Ways of dividing a model, by their names."""


def on_one_and_several(
    folder: Path, found: Registry, work: Callable[[Rig], T], ranks: Mapping[str, int] = TWO_RANKS, **settings: Any
) -> list[T]:
    """What `work` returns for an engine with one rank, and for one with several. ranks: the settings of these."""
    results = []
    for sizes in ({}, ranks):
        with rig_of(folder, found, launch=launch_thread, **sizes, **settings) as rig:
            results.append(work(rig))
    return results
