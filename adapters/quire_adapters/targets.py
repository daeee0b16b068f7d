"""Reads the files of a LoRA adapter, and works out which rank and alpha its config gives each of its matrices."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from quire.isolation import Shared
from quire_adapters import config as configs, files
from quire_adapters.config import Config
from quire_adapters.modules import bare, split
from quire_adapters.patterns import Patterns, Targets

STACKED = ("gate_up_proj", "down_proj")
"""Parameters of stacked experts."""


def read(folder: str, max_bytes: int, max_tensors: int) -> Shared:
    """config: fields of `Config`. tensors: as `quire_adapters.files.read` has them. ranks: see `quire_adapters.pairs`.

    Raises BadRequest for an adapter that is not well-formed.
    """
    given = configs.read(Path(folder))
    found = files.read(folder, max_bytes, max_tensors)
    ranks = ranks_of(Config(**given), (name for name, *_ in found.value))
    return Shared({"config": given, "tensors": found.value, "ranks": ranks}, found.memory)


def ranks_of(config: Config, names: Iterable[str]) -> dict[str, dict[str, tuple[int, float]]]:
    """(rank, alpha) of each matrix that is a target, for the tensors of these names."""
    targets, ranks = Targets(config, Patterns()), dict[str, dict[str, tuple[int, float]]]()
    for path in dict.fromkeys(split(name)[0] for name in names):
        for module, parameter in ((path, "weight"), *((bare(path), stacked) for stacked in STACKED)):
            found = targets.rank_and_alpha(module, parameter)
            if found is not None:
                ranks.setdefault(module, {})[parameter] = found
    return ranks
