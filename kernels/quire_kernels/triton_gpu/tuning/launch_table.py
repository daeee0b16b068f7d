"""Settings of launches by op and shape, kept in a file for each kind of device and version of Triton."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
import triton
from torch import Tensor

from quire_kernels.triton_gpu.tuning.settings import LaunchSettings

log = logging.getLogger(__name__)

S = TypeVar("S", bound=LaunchSettings)

MAX_BYTES = 1 << 22
"""Of a file that is read."""


@dataclass(frozen=True)
class LaunchTable:
    """entries: by op and shape, settings that differ from the default ones."""

    entries: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    def find(self, op: str, shape: str, default: S) -> S:
        """The settings for a shape, else the default ones; also where those of the table cannot be used."""
        given = self.entries.get(op, {}).get(shape)
        if given is None:
            return default
        try:
            return default.with_given(given)
        except ValueError as error:
            log.warning("Settings of %s for %s are ignored: %s", op, shape, error)
            return default

    def with_settings(self, op: str, shape: str, settings: LaunchSettings) -> LaunchTable:
        """A table that also has these."""
        return LaunchTable({**self.entries, op: {**self.entries.get(op, {}), shape: asdict(settings)}})

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps(self.entries, indent=1, sort_keys=True))
        written.replace(path)

    @classmethod
    def read(cls, path: Path) -> LaunchTable:
        """The table of a file; an empty one if there is none, or if it cannot be read, which is logged."""
        try:
            with path.open("rb") as file:
                found = json.loads(file.read(MAX_BYTES))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError) as error:
            log.warning("%s is ignored: %s", path, error)
            return cls()
        tables = found.values() if isinstance(found, dict) else [None]
        if not all(
            isinstance(table, dict) and all(isinstance(one, dict) for one in table.values()) for table in tables
        ):
            log.warning("%s is ignored: it is not a table of launch settings", path)
            return cls()
        return cls(found)


def table_path(device: torch.device) -> Path:
    """The file of a GPU, in the user's cache."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = re.sub(r"[^A-Za-z0-9]+", "-", torch.cuda.get_device_name(device))
    return Path(cache_home) / "quire" / "launches" / f"{name}-triton-{triton.__version__}.json"


def device_table(device: torch.device) -> LaunchTable:
    """What was measured on a device of this kind, read once; empty in the interpreter."""
    return LaunchTable() if device.type != "cuda" else _device_table(device.index or 0)


@cache
def _device_table(index: int) -> LaunchTable:
    return LaunchTable.read(table_path(torch.device("cuda", index)))


def matrix_shape(weight: Tensor) -> str:
    """How the table calls a matrix."""
    outputs, inputs = weight.shape
    return f"{outputs}x{inputs} {str(weight.dtype).removeprefix('torch.')}"
