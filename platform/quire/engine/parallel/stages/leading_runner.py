"""The runner of the leader of a model in stages."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from quire.engine.loading.load import LoadedModel
from quire.engine.multimodal.embeddings import StepMedia
from quire.engine.parallel.leader import Leader
from quire.engine.parallel.leading_runner import LeadingRunner
from quire.engine.parallel.stages.rows import FailedPages, PlannedStep, one_by_one
from quire.engine.recurrent.state_runner import StateLost
from quire.engine.runner.input_batch import Int64Array, StepInputs
from quire.engine.runner.launched_plan import LaunchedPlan
from quire.types import Plan, StepResult
from quire_kernels.groups.group import RankLost

log = logging.getLogger(__name__)


@dataclass(slots=True)
class SentPlan:
    """A plan that the other stages compute. by_rows: its rows are computed one by one.

    failed: what plans before it have left undone.
    """

    number: int
    plan: Plan
    by_rows: bool
    failed: FailedPages = field(default_factory=FailedPages)


class StagedLeadingRunner(LeadingRunner):
    """Sends plans to the other stages when they are launched, and computes the last stage when they are finished.

    If a stage fails, all of them compute the rows of its plan one by one, and then those of the plans that were sent
    meanwhile, because these may have read pages that the failed one should have filled. max_in_flight: of plans.
    """

    def __init__(self, max_in_flight: int, leader: Leader, revisions: Any, loaded: LoadedModel, *rest: Any) -> None:
        super().__init__(leader, revisions, loaded, *rest)
        assert leader.flow is not None, "the model is in stages"
        self.max_in_flight = self._most = max_in_flight
        self._flow = leader.flow
        self._no_rows = torch.empty(0, loaded.decoder.width, dtype=loaded.dtype)
        self._has_encoder_input = loaded.decoder.encoder_input is not None
        self._sent = deque[SentPlan]()

    def launch(self, plan: Plan) -> LaunchedPlan:
        """Send a plan to the other stages. Raises EngineDied if one of them is gone."""
        launched = LaunchedPlan(plan=plan)
        by_rows = self._state is not None and self._state.has_suspects(plan.chunks)
        # slots may be given away before the plan is finished, once a request has been aborted
        for new_seq in plan.started:
            if new_seq.adapters:
                self._adapters.find(new_seq)
        with self._on_ranks():
            number = self._leader.send_plan(plan, self._placed(plan.started), by_rows)
        self._sent.append(SentPlan(number, plan, by_rows))
        return launched

    def finish(self, launched: LaunchedPlan) -> StepResult:
        """Compute the last stage of the oldest plan that is not finished. Raises EngineDied if a rank is gone."""
        sent = self._sent[0]
        assert sent.plan is launched.plan, "plans are finished in the order of their launch"
        with self._on_ranks():
            self._leader.begin_plan(sent.number)
            result = self._compute(sent.plan)
        self._sent.popleft()
        # no plan is sent while rows of others will be computed one by one
        self.max_in_flight = 1 if any(left.by_rows for left in self._sent) else self._most
        self._flow.forget_before(self._sent[0].number if self._sent else self._leader.next_number)
        return result

    def reset(self) -> None:
        """Drop every sequence on all ranks, and the plans that are not finished."""
        self._sent.clear()
        self.max_in_flight = self._most
        super().reset()
        self._flow.forget_before(self._leader.next_number)

    def _hidden_states(
        self, plan: Plan, inputs: StepInputs, index: Int64Array, media: StepMedia | None, failures: dict[int, str]
    ) -> Tensor:
        step, sent = PlannedStep(plan, inputs, index, media), self._sent[0]
        if sent.by_rows:
            return self._one_by_one(step, failures, sent.failed)
        try:
            hidden = self._executor.hidden_states(plan, inputs, index, media, failures)
        except Exception as error:
            if isinstance(error, RankLost) and error.lasting:
                raise
            log.exception("A step of %d tokens failed; its rows are computed one by one", plan.num_tokens)
            if self._state is not None:
                self._state.suspect(plan.chunks)
                raise StateLost from error
            if self._has_encoder_input or (len(plan.chunks) == 1 and len(self._sent) == 1):
                raise
            return self._one_by_one(step, failures, FailedPages(error))
        failures |= self._flow.failures
        return hidden

    def _one_by_one(self, step: PlannedStep, failures: dict[int, str], failed: FailedPages) -> Tensor:
        """Hidden states of a step whose rows are computed one by one. failed: why, and what they cannot read."""
        number, executor = self._sent[0].number, self._executor
        later = [self._sent[i] for i in range(1, len(self._sent))]
        for sent in later:
            sent.by_rows, sent.failed = True, failed

        def compute(row: int) -> Tensor:
            self._leader.begin_plan(self._leader.send_row(number, row))
            found = step.hidden_states(row, executor, failures).clone()
            failures.update(self._flow.failures)
            return found

        ended = frozenset(seq_id for sent in later for seq_id in sent.plan.ended)
        size = self._batch.page_size
        rows = one_by_one(step, compute, executor.describe_error, size, failures, failed, ended, bool(later))
        self._leader.end_rows(number)
        return step.joined(rows, self._no_rows)
