"""The runner of a follower: computes its part of each step, and neither samples nor pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from quire.engine.runner.model_runner import ModelRunner
from quire.engine.runner.selected_tokens import SelectedTokens
from quire.engine.sampling.logprobs import PROMPT_LOGPROBS_BATCH
from quire.engine.sampling.sampler import SamplingState
from quire.params.pooling import PoolingParams, PoolingResult
from quire.types import AcceptedDrafts, NewSeq, Plan, Sample, TokenLogprobs


class FollowingRunner(ModelRunner):
    """Computes the same hidden states and logits as the leader's runner, in the same order, and returns nothing.

    What was sampled arrives with the next plan. So it needs no state of sampling, grammars or logits processors.
    has_head: whether it takes part in logits, as the ranks of the last stage do.
    """

    has_head = True

    def _sampling_state(self, new_seq: NewSeq) -> SamplingState:
        assert not isinstance(new_seq.params, PoolingParams), "it is sampled"
        return SamplingState(new_seq.params, new_seq.seed, list(new_seq.output_ids))

    def _sample(
        self,
        hidden: Tensor,
        selected: SelectedTokens,
        states: Sequence[SamplingState],
        masks: Any,
        failures: dict[int, str],
    ) -> tuple[Mapping[int, Sample], Mapping[int, AcceptedDrafts]]:
        if states and self.has_head:
            rows = selected.rows
            self._logits(hidden[: len(rows)], rows, failures)
        return {}, {}

    def _prompt_logprobs(
        self, hidden: Tensor, selected: SelectedTokens, failures: dict[int, str]
    ) -> Mapping[int, Sequence[TokenLogprobs]]:
        first = len(selected.rows)
        for seq_id, token_ids, _ in selected.scored if self.has_head else ():
            for i in range(0, len(token_ids), PROMPT_LOGPROBS_BATCH):
                count = len(token_ids[i : i + PROMPT_LOGPROBS_BATCH])
                self._logits(hidden[first + i : first + i + count], [seq_id] * count, failures)
            first += len(token_ids)
        return {}

    def _pool(
        self, plan: Plan, hidden: Tensor, selected: SelectedTokens, failures: dict[int, str]
    ) -> Mapping[int, PoolingResult]:
        return {}
