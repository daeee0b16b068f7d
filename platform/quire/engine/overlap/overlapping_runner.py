"""A runner that launches a step while the device computes the one before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.engine.loading.load import LoadedModel
from quire.engine.overlap.sampled_tokens import SampledTokens
from quire.engine.recurrent.state_runner import StateLost
from quire.engine.runner.input_batch import StepInputs
from quire.engine.runner.launched_plan import LaunchedPlan
from quire.engine.runner.model_runner import ModelRunner
from quire.engine.runner.selected_tokens import SelectedTokens
from quire.engine.runner.sizes import RunnerSizes
from quire.engine.sampling.sampler import SamplingState, draw_arguments
from quire.types import Plan, StepResult


class OverlappingRunner(ModelRunner):
    """Leaves the samples of a step on the device, where the next one finds them, until its plan is finished.

    This holds for steps whose rows are sampled from the model's logits as they are, and report nothing else. Any other
    step is launched once the samples of earlier steps are known, and is finished at once.
    """

    max_in_flight, knows_samples = 2, True

    def __init__(self, loaded: LoadedModel, sizes: RunnerSizes, *rest: Any) -> None:
        super().__init__(loaded, sizes, *rest)
        graphs = self._executor.graphs
        latest = torch.zeros(sizes.max_rows, dtype=torch.int64, device=loaded.device)
        self._sampled = SampledTokens(latest if graphs is None else graphs.sampled, self.max_in_flight)
        self._executor.find_tokens = self._sampled.find
        self._unread = deque[tuple[LaunchedPlan, Callable[[], StepResult]]]()

    def reset(self) -> None:
        """Drop every sequence, and the results of plans that are not finished."""
        self._unread.clear()
        super().reset()

    @torch.inference_mode()
    def launch(self, plan: Plan) -> LaunchedPlan:
        """Begin to compute a plan. Its result is known only once it is finished, if the device goes on with it."""
        launched = LaunchedPlan(plan=plan)
        self._update_batch(plan)
        if not plan.chunks:
            launched.result = StepResult({})
            return launched
        inputs, selected, states = self._step(plan)
        if selected.is_plain and all(state.is_plain for state in states):
            self._sampled.refer(inputs.tokens, plan.chunks, inputs.starts)
            self._launch_plain(launched, inputs, selected, states)
        else:
            self._read_all()
            self._enter_tokens(plan, inputs)
            launched.result = self._result(plan, inputs, selected, states)
        return launched

    def finish(self, launched: LaunchedPlan) -> StepResult:
        """Wait for the result of the oldest plan that is not finished."""
        while launched.is_pending:
            self._read_oldest()
        if launched.error is not None:
            raise launched.error
        return super().finish(launched)

    def _launch_plain(
        self, launched: LaunchedPlan, inputs: StepInputs, selected: SelectedTokens, states: Sequence[SamplingState]
    ) -> None:
        plan = launched.plan
        media, failures = self._media(plan, inputs)
        try:
            hidden = self._hidden_states(plan, inputs, selected.index, media, failures)
        except StateLost:
            launched.result = StepResult({}, lost=frozenset(chunk.seq_id for chunk in plan.chunks))
            return
        if self._state is not None and plan.state is not None:
            self._state.after(plan.state)
        tokens = self._draw(hidden, selected.sampled, states, failures) if states else self._sampled.latest
        read = self._sampled.keep(tokens, selected.sampled)
        for state in states:
            state.num_unread += 1

        def wait() -> StepResult:
            found = read()
            for state in states:
                state.num_unread -= 1
            samples = self._sampler.from_argmax(found, states)
            return StepResult(dict(zip(selected.sampled, samples, strict=True)), failures=failures)

        self._unread.append((launched, wait))
        if failures:  # they are committed before the next plan is made
            self._read_all()

    def _draw(
        self, hidden: Tensor, seq_ids: Sequence[int], states: Sequence[SamplingState], failures: dict[int, str]
    ) -> Tensor:
        """The tokens after hidden states, on the device: int64 [rows]."""
        graphs = self._executor.graphs
        if graphs is not None:
            arguments, adapters = draw_arguments(states), self._bind_logits(seq_ids, failures)
            greedy = arguments is None
            found = graphs.computed_argmax(hidden, adapters) if greedy else graphs.drawn(hidden, arguments, adapters)
            if found is not None:
                return found
        return self._sampler.choose(self._logits(hidden, seq_ids, failures), states)

    def _read_oldest(self) -> None:
        launched, wait = self._unread.popleft()
        try:
            launched.result = wait()
        except Exception as error:  # of the device
            launched.error = error

    def _read_all(self) -> None:
        while self._unread:
            self._read_oldest()

    def _enter_tokens(self, plan: Plan, inputs: StepInputs) -> None:
        """Put tokens that are known by now in the place of `UNKNOWN`."""
        for token in np.flatnonzero(inputs.tokens < 0):
            row = int(np.searchsorted(inputs.starts, token, side="right")) - 1
            state = self._batch[plan.chunks[row].seq_id].sampling
            assert state is not None, "it is sampled"
            inputs.tokens[token] = state.output_ids[-1] if state.output_ids else 0  # 0: its sampling failed
