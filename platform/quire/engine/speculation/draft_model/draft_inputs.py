"""The inputs of forwards that compute one draft of each sequence, made once for all drafts of a step."""

from __future__ import annotations

import numpy as np

from quire.engine.runner.input_batch import StepInputs


class DraftInputs:
    """every: a chunk of each sequence, with all the drafts that it may get; `next` takes one after the other."""

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

    def next(self, tokens: list[int]) -> StepInputs:
        """The inputs of the next draft of each sequence, which is known now."""
        index = self._index
        self._index = index + 1
        positions = self._positions[index]
        return StepInputs(
            tokens=np.array(tokens, np.int64),
            positions=positions,
            slot_mapping=self._slots[index],
            starts=self._starts,
            contexts=positions + 1,
            pages=self._pages,
            prompt_lens=self._prompt_lens,
        )
