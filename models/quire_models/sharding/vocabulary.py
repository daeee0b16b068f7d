"""The rows of the embedding table and of the LM head that a rank has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from quire_kernels.groups.group import RankGroup


@dataclass(frozen=True, eq=False)
class VocabularyShare:
    """held: the tokens of this rank. counts: number of tokens of each rank. to_all: every rank needs all logits."""

    held: range
    counts: tuple[int, ...]
    group: RankGroup
    to_all: bool = False

    def look_up(self, ids: Tensor, own_rows: Callable[[Tensor], Tensor]) -> Tensor:
        """Rows of the whole table for ids int64 [N], [N, width], on every rank. own_rows: returns new tensors of rows
        of this rank's table. All ranks must call it with the same ids.
        """
        others = (ids < self.held.start) | (ids >= self.held.stop)
        rows = own_rows((ids - self.held.start).masked_fill_(others, 0)).masked_fill_(others[:, None], 0)
        found: Tensor = self.group.all_reduce(rows)
        return found

    def gather(self, logits: Tensor) -> Tensor:
        """float32 [rows, tokens of this rank] -> [rows, vocab]; arbitrary numbers on ranks that need no logits."""
        found = self.group.gather(logits, self.counts, self.to_all)
        return logits.new_empty(len(logits), sum(self.counts)) if found is None else found
