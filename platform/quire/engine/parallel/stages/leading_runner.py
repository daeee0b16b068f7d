"""The runner of the leader of a model in stages."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from quire.engine.loading.load import LoadedModel
from quire.engine.multimodal.embeddings import StepMedia
from quire.engine.parallel.leader import Leader
from quire.engine.parallel.leading_runner import LeadingRunner
from quire.engine.parallel.messages import EndRows
from quire.engine.parallel.stages.rows import PlannedStep, one_by_one
from quire.engine.recurrent.state_runner import StateLost
from quire.engine.runner.input_batch import Int64Array, StepInputs
from quire.types import Plan
from quire_kernels.groups.group import RankLost

log = logging.getLogger(__name__)


class StagedLeadingRunner(LeadingRunner):
    """Computes the last stage of plans. If a stage fails, all of them compute the rows of its plan one by one."""

    _number = 0
    _by_rows = False

    def __init__(self, leader: Leader, revisions: Any, loaded: LoadedModel, *rest: Any) -> None:
        super().__init__(leader, revisions, loaded, *rest)
        assert leader.flow is not None, "the model is in stages"
        self._flow, self._width = leader.flow, loaded.decoder.width
        self._has_encoder_input = loaded.decoder.encoder_input is not None

    def _begin(self, plan: Plan) -> None:
        self._by_rows = self._state is not None and self._state.has_suspects(plan.chunks)
        self._number = self._leader.send_plan(plan, self._placed(plan.started), self._by_rows)
        self._leader.begin_plan(self._number)

    def _hidden_states(
        self, plan: Plan, inputs: StepInputs, index: Int64Array, media: StepMedia | None, failures: dict[int, str]
    ) -> Tensor:
        step = PlannedStep(plan, inputs, index, media)
        if self._by_rows:
            return self._one_by_one(step, failures, None)
        try:
            hidden = self._executor.hidden_states(plan, inputs, index, media, failures)
        except Exception as error:
            if isinstance(error, RankLost) and error.lasting:
                raise
            log.exception("A step of %d tokens failed; its rows are computed one by one", plan.num_tokens)
            if self._state is not None:
                self._state.suspect(plan.chunks)
                raise StateLost from error
            if len(plan.chunks) == 1 or self._has_encoder_input:
                raise
            return self._one_by_one(step, failures, error)
        failures |= self._flow.failures
        return hidden

    def _one_by_one(self, step: PlannedStep, failures: dict[int, str], error: Exception | None) -> Tensor:
        number, executor = self._number, self._executor

        def compute(row: int) -> Tensor:
            self._leader.begin_plan(self._leader.send_row(number, row))
            found = step.hidden_states(row, executor, failures).clone()
            failures.update(self._flow.failures)
            return found

        size = self._batch.page_size
        rows = one_by_one(step, compute, executor.describe_error, size, failures, error)
        self._leader.send(EndRows(number))
        return _joined(step, rows, self._width)


def _joined(step: PlannedStep, rows: list[Tensor | None], width: int) -> Tensor:
    """The hidden states of all rows; zeros for those that failed."""
    first = next((found for found in rows if found is not None), None)
    hidden = torch.zeros(len(step.index), width) if first is None else first.new_zeros(len(step.index), first.shape[-1])
    for row, found in enumerate(rows):
        if found is not None:
            hidden[torch.from_numpy(step.selected(row))] = found
    return hidden
