"""The inputs of forwards that compute one draft of each sequence, made once for all drafts of a step."""

from __future__ import annotations

import numpy as np

from quire.engine.runner.input_batch import Int64Array, StepInputs


class DraftInputs:
    """every: a chunk of each sequence, with all the drafts that it may get."""

    def __init__(self, every: StepInputs) -> None:
        self._positions, self._slots = every.positions, every.slot_mapping
        self._pages, self._prompt_lens = every.pages, every.prompt_lens
        self._starts = np.arange(len(every.starts))
        self._index = every.starts[:-1]

    def keep(self, rows: list[int]) -> None:
        """Go on with some of the sequences."""
        self._pages, self._prompt_lens = self._pages[rows], self._prompt_lens[rows]
        self._starts = self._starts[: len(rows) + 1]
        self._index = self._index[rows]

    def slots(self, count: int) -> Int64Array:
        """Where keys and values of the next drafts of each sequence go: [count, sequences]"""
        return self._slots[self._index + np.arange(count)[:, None]]

    def skip(self, count: int) -> None:
        """Go on after drafts that were computed."""
        self._index = self._index + count

    def next(self, tokens: list[int]) -> StepInputs:
        """The inputs of the next draft of each sequence, which is known now."""
        positions = self._positions[self._index]
        return StepInputs(
            tokens=np.array(tokens, np.int64),
            positions=positions,
            slot_mapping=self._slots[self._index],
            starts=self._starts,
            contexts=positions + 1,
            pages=self._pages,
            prompt_lens=self._prompt_lens,
        )
