"""The embedding table and the LM head for a drafter on the leader: followers compute their parts at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from quire.engine.parallel.messages import ComputeTables
from quire_models.sharding.stage_flow import StageFlow


class DividedTables:
    """A model's module for a drafter. begin: lets the followers take part, before the module computes its own part.
    flow: brings rows of a table that only the first stage has, None with one stage.
    """

    def __init__(self, module: Any, begin: Callable[[ComputeTables], None], flow: StageFlow | None = None) -> None:
        self._module, self._begin, self._flow = module, begin, flow

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def embed_rows(self, ids: Tensor) -> Tensor:
        """Rows of the embedding table for ids int64; only in the thread of the steps."""
        self._begin(ComputeTables(ids=ids))
        return table_rows(self._module, self._flow, ids)

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


def table_rows(module: Any, flow: StageFlow | None, ids: Tensor) -> Tensor:
    """Rows of the embedding table on every rank that needs them; all ranks must ask. flow: as of the module's stage."""
    if flow is None or (module.part.tied and module.stage.is_last):
        own: Tensor = module.embed_rows(ids)
        return own
    if module.part.tied:  # the last stage has the table too
        return ids.new_empty(0)
    return flow.relay(lambda: module.embed_rows(ids))
