"""Takes the hidden states that a drafter reads out of those that a step computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.engine.loading.load import LoadedModel
from quire.engine.runner.selected_tokens import SelectedTokens
from quire.errors import ConfigError
from quire.records import ReadsHidden
from quire.types import AcceptedDrafts, HiddenStates, Plan


class HiddenTap:
    """What one drafter reads of the steps of one model. Raises ConfigError if the model cannot provide it."""

    def __init__(self, reads: ReadsHidden, loaded: LoadedModel) -> None:
        self.reads, decoder = reads, loaded.decoder
        if reads.every and (decoder.encoder_input is not None or decoder.non_causal):
            raise ConfigError("Drafters that read the hidden states of prompts need a model that only decodes.")
        self._every, self._width = reads.every, decoder.width
        if reads.before_blocks:
            if not hasattr(loaded.module, "return_block_inputs") or max(reads.before_blocks) >= len(decoder.blocks):
                raise ConfigError(f"{loaded.info.name} has no inputs of the blocks {reads.before_blocks} to read.")
            loaded.module.return_block_inputs(reads.before_blocks)

    def index(self, selected: SelectedTokens, plan: Plan) -> NDArray[np.int64]:
        """int64, the tokens of the step whose hidden states are to be computed."""
        return np.arange(plan.num_tokens) if self._every else selected.index

    def selected(self, hidden: Tensor, selected: SelectedTokens) -> Tensor:
        """The rows of `selected`, in the LM head's width, of the hidden states of the tokens in `index`."""
        rows = hidden if hidden.shape[1] == self._width else hidden[:, : self._width]
        if not self._every:
            return rows.contiguous()
        return rows.index_select(0, torch.from_numpy(selected.index).to(rows.device))

    def read(
        self, hidden: Tensor, plan: Plan, accepted: Mapping[int, AcceptedDrafts], failures: Mapping[int, str]
    ) -> Sequence[HiddenStates]:
        """For the drafter; without tokens whose drafts were rejected, and without chunks that failed."""
        found, first = [], 0
        for chunk in plan.chunks:
            known = len(chunk.token_ids) - chunk.num_drafts
            kept = known + (accepted[chunk.seq_id].num_drafts if chunk.seq_id in accepted else 0)
            if self._every:
                begin, rows = 0, hidden[first : first + kept]
                first += len(chunk.token_ids)
            elif chunk.samples:
                begin, rows = kept - 1, hidden[first + kept - known : first + kept - known + 1]
                first += 1 + chunk.num_drafts
            else:
                continue
            if chunk.seq_id not in failures:
                found.append(HiddenStates(chunk.seq_id, chunk.start + begin, chunk.token_ids[begin:kept], rows))
        return found
