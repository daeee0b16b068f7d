"""Accounts for the host memory that the models of a process reserve.

The system allocates memory when it is first written to, so what one model has reserved still looks free to the next.
The ledger counts reservations instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from quire.errors import NoMemory

KV_SHARE = 0.25
"""Share of the free memory that the KV caches of all models on a CPU take by default."""
MAX_KV_BYTES = 4 << 30
"""Maximum bytes of one model's KV cache on a CPU by default."""

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Bytes of memory that a model has reserved. weights: an upper bound. state: of recurrent blocks. drafter: of
    speculative decoding."""

    weights: int
    kv_cache: int = 0
    state: int = 0
    swap: int = 0
    encoder_cache: int = 0
    drafter: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache + self.state + self.swap + self.encoder_cache + self.drafter


@dataclass(frozen=True, kw_only=True)
class MemoryBudget:
    """Bytes of its device that a model may take.

    total: of everything. kv_cache: default of its KV cache. max_kv_cache: its maximum, if a sequence of the model's
    full length needs more than `kv_cache`. kv_part: the largest part of what the weights leave for the KV cache of a
    model on a CPU.
    """

    total: int
    kv_cache: int
    max_kv_cache: int
    kv_part: float = 0.5

    def without(self, num_bytes: int) -> MemoryBudget:
        """What is left beside something that takes so many bytes."""
        return replace(self, total=max(0, self.total - num_bytes))

    def part_of_ranks(self, num_ranks: int) -> MemoryBudget:
        """What each of so many ranks on this device may take."""
        total, kv_cache, most = (size // num_ranks for size in (self.total, self.kv_cache, self.max_kv_cache))
        return replace(self, total=total, kv_cache=kv_cache, max_kv_cache=most)


class MemoryLedger:
    """Counts what models reserve of `available` bytes. A reservation ends when the model's object is freed.

    num_models: models that share the bytes, loaded or not; 0 = those that are loaded share what is left.
    """

    def __init__(self, available: int, num_models: int = 0) -> None:
        self.available, self._num_models = available, num_models
        self._uses: WeakKeyDictionary[object, tuple[str, MemoryUse]] = WeakKeyDictionary()
        self._group_left = 0
        self._group_kv = 0

    @property
    def reserved(self) -> int:
        return sum(use.total for _, use in self._now())

    def _now(self) -> list[tuple[str, MemoryUse]]:
        """Name and use of each model; KV memory may have moved between models since they were entered."""
        found = []
        for model, (name, use) in self._uses.items():
            pages: Any = getattr(model, "kv_pages", None)
            is_moved = pages is not None and use.kv_cache > 0  # 0: the model sleeps
            found.append((name, replace(use, kv_cache=pages.held_bytes) if is_moved and pages else use))
        return found

    def budget(self, num_left: int = 1, free: int | None = None) -> MemoryBudget:
        """What the next model may take.

        num_left: models still to load of those that are loaded together, this one included. They share `KV_SHARE` of
        what was left before the first of them. free: bytes that the system has now, if other processes may have taken
        some.
        """
        left = max(0, self.available - self.reserved)
        left = left if free is None else min(left, free)
        if self._num_models:
            most = min(int(KV_SHARE * self.available), MAX_KV_BYTES)
            return MemoryBudget(total=left, kv_cache=most // self._num_models, max_kv_cache=most, kv_part=1)
        if num_left >= self._group_left:  # the first of a group
            self._group_kv = int(KV_SHARE * left)
        self._group_left = num_left
        return MemoryBudget(
            total=left,
            kv_cache=min(self._group_kv // num_left, MAX_KV_BYTES),
            max_kv_cache=min(self._group_kv, MAX_KV_BYTES),
        )

    def enter(self, model: object, name: str, use: MemoryUse) -> None:
        """Count `use` until `model` is freed."""
        self._uses[model] = (name, use)
        self._group_kv = max(0, self._group_kv - use.kv_cache - use.state)

    def leave(self, model: object) -> None:
        """End the reservation of a model now."""
        self._uses.pop(model, None)

    def table(self) -> str:
        """A table as text: the bytes of each model, their sum, and the bytes available."""
        rows = self._now()
        width = max([len("model"), *(len(name) for name, _ in rows)])
        columns = {"weights": "weights", "KV cache": "kv_cache"}
        if any(use.state for _, use in rows):
            columns["state"] = "state"
        if any(use.drafter for _, use in rows):
            columns["drafter"] = "drafter"
        columns |= {"swap": "swap", "encoder": "encoder_cache", "total": "total"}
        lines = [f"{'model':{width}}  " + "  ".join(f"{title:>9}" for title in columns)]
        for name, use in rows:
            numbers = [_gib(getattr(use, field)) for field in columns.values()]
            lines.append(f"{name:{width}}  " + "  ".join(f"{number:>9}" for number in numbers))
        lines.append(f"together {_gib(self.reserved)} of the {_gib(self.available)} that were free")
        return "\n".join(lines)


def check_fits(name: str, use: MemoryUse, left: int) -> None:
    """Raise NoMemory if a model would reserve more than the `left` bytes."""
    if use.total <= left:
        return
    drafter = f", drafter {_gib(use.drafter)}" if use.drafter else ""
    raise NoMemory(
        f"The model {name!r} would take {_gib(use.total)} of memory (weights {_gib(use.weights)}, KV cache "
        f"{_gib(use.kv_cache)}, state {_gib(use.state)}, swap {_gib(use.swap)}, encoder cache "
        f"{_gib(use.encoder_cache)}{drafter}), but {_gib(left)} are left: lower --kv-cache-memory-bytes, "
        "--num-pages, --swap-space or --encoder-cache-bytes, or serve fewer models."
    )


def _gib(number: int) -> str:
    return f"{number / GIB:.2f} GiB" if number >= GIB // 10 else f"{number / 2**20:.1f} MiB"
