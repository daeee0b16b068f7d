"""The group of ranks as one of them sees it, and what must be equal on all of them."""

from __future__ import annotations

import hashlib
import mmap
import socket
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from quire.engine.loading.load import LoadedModel
from quire.errors import ConfigError
from quire_kernels.cpu.build import BuildError
from quire_kernels.cpu.implementations import compiled
from quire_kernels.cpu.library import Library
from quire_kernels.groups.shared_memory import SharedMemoryGroup, anonymous_memory, shared_bytes
from quire_kernels.groups.sockets import SocketGroup
from quire_kernels.groups.structs import MAX_THREADS

TIMEOUT_S = 60.0
"""How long a rank waits for another one in the middle of a step."""

SAMPLES, SAMPLE_BYTES = 64, 1 << 12
"""What `model_digest` reads of each file."""


def rank_group(memory: mmap.mmap, rank: int, size: int, threads: int) -> SharedMemoryGroup:
    """One rank's end of a group. threads: of each rank."""
    return SharedMemoryGroup(_library(size), memory, rank, size, num_exchanging(threads), TIMEOUT_S)


def socket_group(connections: Mapping[int, socket.socket], rank: int, size: int) -> SocketGroup:
    """One rank's end of a group without shared memory. connections: to each other rank."""
    return SocketGroup(_library(size), connections, rank, size, TIMEOUT_S)


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
            f"--tensor-parallel-size {size} needs the C++ ops, through which ranks exchange numbers: {error}."
        ) from error


def model_digest(loaded: LoadedModel) -> str:
    """Equal for ranks that have loaded parts of the same model with the same version of Quire.

    Of each file of weights it has the name, the size and samples of the contents, so that it takes little time.
    """
    folder, info = Path(loaded.info.folder), loaded.info
    made = (version("quire-serve"), info.architecture, info.dtype, info.num_parameters)
    found = hashlib.sha256(repr(made).encode())
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if file.suffix in (".json", ".safetensors", ".bin", ".pt", ".gguf"):
            size = file.stat().st_size
            found.update(f"{file.name} {size}\n".encode())
            with file.open("rb") as opened:
                for sample in range(SAMPLES):
                    opened.seek(max(0, size - SAMPLE_BYTES) * sample // (SAMPLES - 1))
                    found.update(opened.read(SAMPLE_BYTES))
    return found.hexdigest()
