"""Reads the files of a LoRA adapter and computes the rank and alpha that its config gives each matrix."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from quire.isolation.plugin_calls import Shared
from quire_adapters.peft import config as configs, tensor_files as files
from quire_adapters.peft.config import PeftConfig
from quire_adapters.peft.modules import split_name, unwrap_path
from quire_adapters.peft.patterns import Patterns, Targets

STACKED = ("gate_up_proj", "up_proj", "down_proj")
"""Parameters of stacked experts."""


def read(folder: str, max_bytes: int, max_tensors: int) -> Shared:
    """An object of config (fields of `PeftConfig`), tensors (spans, as `tensor_files.read` returns them) and ranks
    (`lora_pairs.Ranks`), with the memory of the tensors. Runs in an isolated process.

    Raises BadRequest for a malformed adapter.
    """
    given = configs.read(Path(folder))
    found = files.read(folder, max_bytes, max_tensors)
    ranks = compute_ranks(PeftConfig(**given), (name for name, *_ in found.value))
    return Shared({"config": given, "tensors": found.value, "ranks": ranks}, found.memory)


def compute_ranks(config: PeftConfig, names: Iterable[str]) -> dict[str, dict[str, tuple[int, float]]]:
    """(rank, alpha) of each matrix that is a target, for the tensors with these names."""
    targets, ranks = Targets(config, Patterns()), dict[str, dict[str, tuple[int, float]]]()
    for path in dict.fromkeys(split_name(name)[0] for name in names):
        for module, parameter in ((path, "weight"), *((unwrap_path(path), stacked) for stacked in STACKED)):
            found = targets.rank_and_alpha(module, parameter)
            if found is not None:
                ranks.setdefault(module, {})[parameter] = found
    return ranks
