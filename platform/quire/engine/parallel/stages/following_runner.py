"""The runner of a follower of a model in stages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from quire.engine.loading.load import LoadedModel
from quire.engine.multimodal.embeddings import StepMedia
from quire.engine.parallel.following_runner import FollowingRunner
from quire.engine.parallel.messages import RunPlan, RunRow
from quire.engine.parallel.stages.rows import PlannedStep
from quire.engine.recurrent.state_runner import StateLost
from quire.engine.runner.input_batch import Int64Array, StepInputs
from quire.engine.runner.selected_tokens import SelectedTokens
from quire.engine.sampling.sampler import SamplingState
from quire.types import Plan

MAX_KEPT = 128
"""Plans whose rows may still have to be computed one by one: many more than are in flight."""


class RowsFollow(StateLost):
    """The rows of a plan are computed later, by commands of their own."""


@dataclass(frozen=True)
class KeptStep:
    """A step whose rows may be computed one by one, and the hidden states of those that were, by row."""

    step: PlannedStep
    selected: SelectedTokens
    states: Sequence[SamplingState]
    rows: dict[int, Tensor] = field(default_factory=dict)


class StagedFollowingRunner(FollowingRunner):
    """Computes one stage of plans."""

    def __init__(self, loaded: LoadedModel, *rest: Any, **options: Any) -> None:
        super().__init__(loaded, *rest, **options)
        stage: Any = loaded.module.stage
        self.has_head, self._flow = stage.is_last, stage.flow
        self._no_rows = torch.empty(0, loaded.decoder.width, dtype=loaded.dtype)
        self._steps: OrderedDict[int, KeptStep] = OrderedDict()
        self._command: RunPlan | None = None
        self._selected: tuple[SelectedTokens, Sequence[SamplingState]]

    def run_plan(self, command: RunPlan) -> None:
        """Compute a plan, or prepare to compute its rows one by one."""
        self._command = command
        self.launch(command.plan)

    @torch.inference_mode()
    def run_row(self, command: RunRow) -> None:
        """Compute one row of a plan."""
        self._flow.failures = failures = dict[int, str]()
        kept = self._steps[command.plan]
        hidden = kept.step.hidden_states(command.row, self._executor, failures)
        if self.has_head:
            kept.rows[command.row] = hidden.clone()

    @torch.inference_mode()
    def end_rows(self, number: int) -> None:
        """All rows of a plan are computed: go on as behind its forward pass."""
        kept = self._steps[number]
        step, selected, failures = kept.step, kept.selected, dict[int, str]()
        if self._state is not None and step.plan.state is not None:
            self._state.after(step.plan.state)
        if self.has_head:
            hidden = step.joined([kept.rows.get(row) for row in range(len(step.plan.chunks))], self._no_rows)
            if self._tap is not None:
                hidden = self._tap.selected(hidden, selected)
            self._sample(hidden, selected, kept.states, None, failures)
            self._prompt_logprobs(hidden, selected, failures)

    def reset(self) -> None:
        super().reset()
        self._steps.clear()

    def _step(self, plan: Plan) -> tuple[StepInputs, SelectedTokens, list[SamplingState]]:
        found = super()._step(plan)
        self._selected = found[1:]
        return found

    def _hidden_states(
        self, plan: Plan, inputs: StepInputs, index: Int64Array, media: StepMedia | None, failures: dict[int, str]
    ) -> Tensor:
        assert self._command is not None, "a command brings the plan"
        self._steps[self._command.number] = KeptStep(PlannedStep(plan, inputs, index, media), *self._selected)
        if len(self._steps) > MAX_KEPT:
            self._steps.popitem(last=False)
        if self._command.by_rows:
            raise RowsFollow
        self._flow.failures = failures
        return self._executor.hidden_states(plan, inputs, index, media, failures)
