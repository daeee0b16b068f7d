"""The group of ranks of one machine, and what must be equal on all of them."""

from __future__ import annotations

import hashlib
import mmap
from pathlib import Path

from quire.engine.loading.load import LoadedModel
from quire.errors import ConfigError
from quire_kernels.cpu.build import BuildError
from quire_kernels.cpu.implementations import compiled
from quire_kernels.cpu.library import Library
from quire_kernels.groups.shared_memory import SharedMemoryGroup, anonymous_memory, shared_bytes
from quire_kernels.groups.structs import MAX_THREADS

TIMEOUT_S = 60.0
"""How long a rank waits for another one in the middle of a step."""


def rank_group(memory: mmap.mmap, rank: int, size: int, threads: int) -> SharedMemoryGroup:
    """One rank's end of a group. threads: of each rank."""
    return SharedMemoryGroup(_library(size), memory, rank, size, num_exchanging(threads), TIMEOUT_S)


def group_memory(size: int, threads: int) -> tuple[int, mmap.mmap]:
    """A descriptor of the memory that a group shares, and the memory. Raises ConfigError if there are no C++ ops."""
    return anonymous_memory(shared_bytes(_library(size), size, num_exchanging(threads)))


def num_exchanging(threads: int) -> int:
    """How many threads of a rank exchange numbers at once."""
    return min(threads, MAX_THREADS)


def _library(size: int) -> Library:
    try:
        return compiled()
    except BuildError as error:
        raise ConfigError(
            f"--tensor-parallel-size {size} needs the C++ ops, through whose memory ranks exchange numbers: {error}."
        ) from error


def model_digest(loaded: LoadedModel) -> str:
    """Equal for ranks that have loaded parts of the same model: its config, its weight files' names and sizes."""
    folder = Path(loaded.info.folder)
    found = hashlib.sha256(repr((loaded.info.architecture, loaded.info.dtype, loaded.info.num_parameters)).encode())
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if file.suffix in (".json", ".safetensors", ".bin", ".pt", ".gguf"):
            found.update(f"{file.name} {file.stat().st_size}\n".encode())
    return found.hexdigest()
