"""Which pages of a drafter's KV cache belong to which sequence, and what of it is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class SeqState:
    """One sequence, from position `base` on, where its hidden states begin to be known.

    The pair at a position is the hidden state there and the token after it. computed: pairs whose keys and values are
    in `pages`. token_ids, rows: the tokens and hidden states that follow these, whose pairs are not computed yet.
    feature: [1, width], what the draft model returned for the last computed pair.
    """

    base: int
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    feature: Tensor | None = None

    @property
    def end(self) -> int:
        """The position after the last hidden state."""
        return self.base + self.computed + len(self.token_ids)

    def append(self, token_ids: Sequence[int], rows: Tensor) -> None:
        self.token_ids += token_ids
        self.rows.append(rows)

    def take(self, count: int) -> Tensor:
        """Remove the first `count` of the uncomputed pairs: their hidden states, [count, width]."""
        every = self.rows[0] if len(self.rows) == 1 else torch.cat(self.rows)
        del self.token_ids[:count]
        self.rows = [every[count:]] if count < len(every) else []
        return every[:count]


class DraftPages:
    """The free pages of a cache of `num_pages` pages, and the state of each sequence by id."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self._free = list(range(num_pages - 1, -1, -1))
        self._states: dict[int, SeqState] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_seqs(self) -> int:
        return len(self._states)

    def get(self, seq_id: int) -> SeqState | None:
        return self._states.get(seq_id)

    def start(self, seq_id: int, base: int) -> SeqState:
        """A new state of a sequence, in place of the one that it has."""
        self.end(seq_id)
        self._states[seq_id] = SeqState(base)
        return self._states[seq_id]

    def end(self, seq_id: int) -> None:
        """Drop the state of a sequence, if there is one."""
        state = self._states.pop(seq_id, None)
        if state is not None:
            self._free += state.pages

    def reserve(self, seq_id: int, num_pairs: int) -> bool:
        """Give a sequence pages for so many pairs. If there are too few, its state is dropped: it begins again at the
        next hidden state.
        """
        pages = self._states[seq_id].pages
        missing = -(-num_pairs // self.page_size) - len(pages)
        if missing > len(self._free):
            self.end(seq_id)
            return False
        pages += [self._free.pop() for _ in range(missing)]
        return True
