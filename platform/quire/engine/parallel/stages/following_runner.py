"""The runner of a follower of a model in stages."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quire.engine.loading.load import LoadedModel
from quire.engine.multimodal.embeddings import StepMedia
from quire.engine.parallel.following_runner import FollowingRunner
from quire.engine.parallel.messages import RunPlan, RunRow
from quire.engine.parallel.stages.rows import PlannedStep
from quire.engine.runner.input_batch import Int64Array, StepInputs
from quire.types import Plan, StateMoves

KEPT = 2 * 64
"""Plans whose rows may still have to be computed one by one: many more than are in flight."""


class StagedFollowingRunner(FollowingRunner):
    """Computes one stage of plans."""

    def __init__(self, loaded: LoadedModel, *rest: Any, **options: Any) -> None:
        super().__init__(loaded, *rest, **options)
        stage: Any = loaded.module.stage
        self.has_head, self._flow = stage.is_last, stage.flow
        self._steps: OrderedDict[int, PlannedStep] = OrderedDict()
        self._moves: dict[int, StateMoves] = {}
        self._command: RunPlan | None = None

    def run_plan(self, command: RunPlan) -> None:
        """Compute a plan, or prepare to compute its rows one by one."""
        self._command, plan = command, command.plan
        if command.by_rows and plan.state is not None:
            self._moves[command.number] = plan.state
            plan = replace(plan, state=replace(plan.state, checkpoints=()))
        self.launch(plan)

    @torch.inference_mode()
    def run_row(self, command: RunRow) -> None:
        """Compute one row of a plan."""
        self._flow.failures = failures = dict[int, str]()
        self._steps[command.plan].hidden_states(command.row, self._executor, failures)

    def end_rows(self, number: int) -> None:
        """All rows of a plan are computed."""
        moves = self._moves.pop(number, None)
        if moves is not None and self._state is not None:
            self._state.after(moves)

    def reset(self) -> None:
        super().reset()
        self._steps.clear()
        self._moves.clear()

    def _hidden_states(
        self, plan: Plan, inputs: StepInputs, index: Int64Array, media: StepMedia | None, failures: dict[int, str]
    ) -> Tensor:
        assert self._command is not None, "a command brings the plan"
        self._steps[self._command.number] = PlannedStep(plan, inputs, index, media)
        if len(self._steps) > KEPT:
            self._steps.popitem(last=False)
        if self._command.by_rows:
            return torch.empty(0)
        self._flow.failures = failures
        return self._executor.hidden_states(plan, inputs, index, media, failures)
