"""Divides the cores, memory and GPUs of a machine among the replicas on it."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from pathlib import Path

import msgspec

DEVICES = "CUDA_VISIBLE_DEVICES"
THREADS = "OMP_NUM_THREADS"

GPUS = Path("/proc/driver/nvidia/gpus")
"""Has a folder for each GPU of the machine."""


class ReplicaShare(msgspec.Struct, frozen=True):
    """What one replica may take. index, count: its number, and how many there are. memory_bytes: of host memory.

    device: the one GPU that it sees, as in `CUDA_VISIBLE_DEVICES`; None = no limit. num_on_device: replicas on it.
    """

    index: int
    count: int
    memory_bytes: int
    device: str | None = None
    num_on_device: int = 1

    def apply(self, environment: MutableMapping[str, str]) -> None:
        """Limit this process to its GPU, and torch to its part of the cores, unless the user set a number."""
        if self.device is not None:
            environment[DEVICES] = self.device
        if THREADS not in environment:
            import torch

            torch.set_num_threads(max(1, torch.get_num_threads() // self.count))


def divide(count: int, free_bytes: int, environment: Mapping[str, str], gpus: Path = GPUS) -> list[ReplicaShare]:
    """Equal shares for `count` replicas. With fewer GPUs than replicas, several share one."""
    devices = _devices(environment, gpus)
    return [
        ReplicaShare(
            index,
            count,
            free_bytes // count,
            devices[index % len(devices)] if devices else None,
            len(range(index % len(devices), count, len(devices))) if devices else count,
        )
        for index in range(count)
    ]


def _devices(environment: Mapping[str, str], gpus: Path) -> list[str]:
    if DEVICES in environment:
        return [name for name in environment[DEVICES].split(",") if name]
    return [str(number) for number in range(sum(1 for _ in gpus.iterdir()))] if gpus.is_dir() else []
