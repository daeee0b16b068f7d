"""Rows of a plan whose forward pass has failed: each is computed by all stages in a forward pass of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set as AbstractSet
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from quire.engine.multimodal.embeddings import StepMedia
from quire.engine.runner.forward_executor import ForwardExecutor
from quire.engine.runner.input_batch import Int64Array, StepInputs
from quire.types import Plan


@dataclass(frozen=True, eq=False)
class PlannedStep:
    """What a rank computes of a plan. index: tokens whose hidden states are needed. media: rows of this step."""

    plan: Plan
    inputs: StepInputs
    index: Int64Array
    media: StepMedia | None

    def selected(self, row: int) -> Int64Array:
        """Which of `index` are tokens of a row: bool [len(index)]."""
        begin, end = self.inputs.starts[row], self.inputs.starts[row + 1]
        found: Int64Array = (self.index >= begin) & (self.index < end)
        return found

    def pages(self, row: int, page_size: int) -> list[int]:
        """The pages of a row's sequence."""
        found: list[int] = self.inputs.pages[row, : -(-int(self.inputs.contexts[row]) // page_size)].tolist()
        return found

    def hidden_states(self, row: int, executor: ForwardExecutor, failures: dict[int, str]) -> Tensor:
        """Those of the tokens in `index` that belong to the row."""
        begin, end = int(self.inputs.starts[row]), int(self.inputs.starts[row + 1])
        index = self.index[self.selected(row)] - begin
        plan, media = replace(self.plan, chunks=(self.plan.chunks[row],)), self.media
        if media is not None:
            low, high = np.searchsorted(media.index, (begin, end))
            media = StepMedia(media.index[low:high] - begin, media.rows[low:high]) if low < high else None
        return executor.hidden_states(plan, self.inputs.row(row), index, media, failures)

    def joined(self, rows: Sequence[Tensor | None], no_rows: Tensor) -> Tensor:
        """The hidden states of all rows; zeros for those that are None. no_rows: [0, width]."""
        hidden = no_rows.new_zeros(len(self.index), no_rows.shape[-1])
        for row, found in enumerate(rows):
            if found is not None:
                hidden[torch.from_numpy(self.selected(row))] = found
        return hidden


@dataclass(slots=True)
class FailedPages:
    """What failed rows have left undone. error: the latest one, None if there is none yet. pages: not filled.

    num_computed: rows that were computed meanwhile.
    """

    error: Exception | None = None
    pages: set[int] = field(default_factory=set)
    num_computed: int = 0

    def move(self, plan: Plan) -> None:
        """Follow the pages that a plan moves before its rows are computed. What is swapped was filled."""
        self.pages.difference_update(destination for _, destination in plan.swaps_in)
        for source, destination in plan.copies:
            if source in self.pages:
                self.pages.add(destination)
            else:
                self.pages.discard(destination)


def one_by_one(
    step: PlannedStep,
    compute: Callable[[int], Tensor],
    describe_error: Callable[[Exception], str],
    page_size: int,
    failures: dict[int, str],
    failed: FailedPages,
    ended: AbstractSet[int] = frozenset(),
    others_left: bool = False,
) -> list[Tensor | None]:
    """What `compute` returns for each row, None for one that fails.

    A row fails if `compute` raises, or reads pages which failed rows should have filled; then it is in `failures`.
    failed: why rows are computed one by one, in this or an earlier plan; updated. ended: sequences that have ended
    meanwhile, whose pages may be of others by now: these rows fail. Raises the last error if none of several rows, of
    this plan and those before it, can be computed, unless there are other plans.
    """
    again, found, raised = failed.error is None, list[Tensor | None](), False
    failed.move(step.plan)
    for row, chunk in enumerate(step.plan.chunks):
        pages = step.pages(row, page_size)
        read, filled = pages[: -(-chunk.start // page_size)], pages[chunk.start // page_size :]
        if chunk.seq_id in ended:
            failures[chunk.seq_id] = "it has ended"
            found.append(None)
        elif failed.error is not None and not failed.pages.isdisjoint(read):
            failures[chunk.seq_id] = describe_error(failed.error)
            found.append(None)
        else:
            try:
                found.append(compute(row))
            except Exception as error:
                if getattr(error, "lasting", False):
                    raise
                failed.error, raised = error, True
                failures[chunk.seq_id] = describe_error(error)
                found.append(None)
        if found[-1] is None:
            failed.pages.update(filled)
        else:
            failed.pages.difference_update(filled)
            failed.num_computed += 1
    if failed.error is not None and raised and not (failed.num_computed or others_left or (again and len(found) == 1)):
        raise failed.error
    return found
