"""Begins the sampling of sequences: what each of them needs besides its parameters."""

from __future__ import annotations

from collections.abc import Collection

from quire.engine.processors.logits_processors import LogitsProcessors, ProcessorState
from quire.engine.sampling.logits_edits import LogitsEdits
from quire.engine.sampling.sampler import SamplingState
from quire.engine.structured.grammars import Grammars
from quire.errors import QuireError
from quire.params.pooling import PoolingParams
from quire.params.sampling import SamplingParams
from quire.types import NewSeq


class SamplingStates:
    """Makes the `SamplingState` of each new sequence of one model."""

    def __init__(self, eos_ids: Collection[int], processors: LogitsProcessors, grammars: Grammars) -> None:
        self._eos_ids, self._processors, self._grammars = eos_ids, processors, grammars

    def start(self, new_seq: NewSeq) -> SamplingState:
        """For a sequence that is not pooled. If a processor or its grammar fails, the state has the error."""
        params, output_ids = new_seq.params, list(new_seq.output_ids)
        assert not isinstance(params, PoolingParams), "it is sampled"
        edits: LogitsEdits | None = None
        processors: tuple[ProcessorState, ...] = ()
        try:
            if isinstance(params, SamplingParams):
                if params.edits_logits:
                    edits = LogitsEdits(params, self._eos_ids, new_seq.sent_ids, output_ids)
                processors = self._processors.start(params, output_ids, new_seq.sent_ids)
            constraint = self._grammars.start(params.structured, output_ids) if params.structured else None
        except QuireError as error:
            return SamplingState(params, new_seq.seed, output_ids, edits, error=error.wire)
        return SamplingState(params, new_seq.seed, output_ids, edits, processors, constraint)
