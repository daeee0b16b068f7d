"""The embedding table and the LM head for a drafter on the leader: followers compute their parts at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from quire.engine.parallel.messages import ComputeTables


class DividedTables:
    """A model's module for a drafter. begin: lets the followers take part, before the module computes its own part."""

    def __init__(self, module: Any, begin: Callable[[ComputeTables], None]) -> None:
        self._module, self._begin = module, begin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def embed_rows(self, ids: Tensor) -> Tensor:
        """Rows of the embedding table for ids int64; only in the thread of the steps."""
        self._begin(ComputeTables(ids=ids))
        found: Tensor = self._module.embed_rows(ids)
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [rows, width] -> float32 [rows, vocab]."""
        self._begin(ComputeTables(hidden=hidden))
        found: Tensor = self._module.logits(hidden)
        return found

    def argmax(self, hidden: Tensor) -> list[int]:
        """The most likely token of each row of hidden [rows, width]."""
        self._begin(ComputeTables(hidden=hidden))
        found: list[int] = self._module.argmax(hidden)
        return found
