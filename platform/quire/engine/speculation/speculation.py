"""The drafts of one model: which sequences get drafts, from their prediction or from the drafter, how many, and what
is done with a drafter that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

from quire.engine.sampling.rng import seq_seed
from quire.engine.scheduler.page_pool import hash_root
from quire.engine.scheduler.seq import Seq
from quire.engine.speculation.acceptance import Acceptance
from quire.engine.speculation.built_drafter import BuiltDrafter
from quire.engine.speculation.draft_counts import DraftCounts
from quire.engine.speculation.draft_lengths import DraftLengths
from quire.engine.speculation.predictions import Predictions
from quire.errors import NotFound, PluginFailed, PluginOff, QuireError
from quire.hooks.call_stats import call_plugin
from quire.params.sampling import SamplingParams
from quire.records import Draft, DraftQuery, ReadsHidden, Registry
from quire.types import Plan, Request, SpeculationStats, StepResult

log = logging.getLogger(__name__)


RESTS = 3
"""Steps that follow a decision against drafts without a new one."""


class Speculation:
    """Drafts for the sequences of one model. A fault of the drafter costs drafts only.

    drafter: None = only sequences with a prediction get drafts. acceptance: for the runner, None = exact.
    """

    def __init__(
        self,
        registry: Registry,
        drafter: BuiltDrafter | None,
        lengths: DraftLengths,
        acceptance: Acceptance | None = None,
    ) -> None:
        self._registry, self._drafter, self._lengths = registry, drafter, lengths
        self.acceptance = acceptance
        self._predictions, self._counts = Predictions(), DraftCounts()
        self.is_used = drafter is not None  # whether steps may have drafts
        self._draft_s = 0.0  # of the step at hand
        self._num_rests, self._last_rests = 0, 0  # steps left without a decision, and those before the next one
        self._constants: dict[int, tuple[int, tuple[str, ...], bytes]] = {}  # seed, adapters, scope by seq id

    @property
    def memory_bytes(self) -> int:
        """What the drafter takes of the memory of the model's device."""
        return self._drafter.memory_bytes if self._drafter is not None else 0

    @property
    def reads_hidden(self) -> ReadsHidden | None:
        """The hidden states that the drafter reads; None if it reads none."""
        return self._drafter.reads_hidden if self._drafter is not None else None

    def add(self, request: Request) -> None:
        """Without a drafter nothing is done in steps until the first request with a prediction comes.

        Raises NotFound if the drafter does not have the adapter that the request names.
        """
        name = getattr(request.params, "speculative_lora", None)
        known = self._drafter.adapter_names if self._drafter is not None else ()
        if name is not None and name not in known:
            raise NotFound(
                f"The drafter has no adapter `{name:.200}`. Its adapters: {', '.join(sorted(known)) or 'none'} "
                "(--speculative-lora).",
                "speculative_lora",
            )
        self.is_used = self.is_used or bool(getattr(request.params, "prediction_ids", ()))

    def propose(self, generating: Callable[[], Sequence[Seq]]) -> Mapping[int, Draft]:
        """Drafts by seq id. generating: returns the seqs whose next chunk is one token that they sample after."""
        if not self.is_used:
            return {}
        if self._num_rests:
            self._num_rests, self._draft_s = self._num_rests - 1, 0.0
            return {}
        begin, seqs = perf_counter(), generating()
        are_predicted = any(map(_has_prediction, seqs))
        most = self._drafter.max_drafts if self._drafter is not None and not are_predicted else None
        lengths = self._lengths.choose([seq.id for seq in seqs], most, 1 + self._last_rests)
        rests = self._lengths.adaptive and not self._lengths.measures and seqs and not any(lengths)
        self._num_rests = self._last_rests = RESTS if rests else 0
        queries = [
            self._query(seq, length)
            for seq, length in zip(seqs, lengths, strict=True)
            if length and _may_speculate(seq, self._drafter is not None)
        ]
        found = self._predicted(queries) if are_predicted else {}
        found |= self._drafted([query for query in queries if query.seq_id not in found] if found else queries)
        if len(found) < len(queries):
            self._lengths.count_empty(query.seq_id for query in queries if query.seq_id not in found)
        drafts = {seq_id: self._lengths.cut(seq_id, draft) for seq_id, draft in found.items()}
        self._draft_s = perf_counter() - begin
        return drafts

    def _predicted(self, queries: Sequence[DraftQuery]) -> dict[int, Draft]:
        """Drafts from the predictions of sequences, by seq id."""
        return {query.seq_id: Draft(token_ids) for query in queries if (token_ids := self._predictions.draft(query))}

    def _drafted(self, queries: Sequence[DraftQuery]) -> dict[int, Draft]:
        """Drafts of the drafter, by seq id."""
        if self._drafter is None or not queries:
            return {}
        most = self._drafter.max_drafts
        queries = [query if query.max_drafts <= most else replace(query, max_drafts=most) for query in queries]
        try:
            drafts: dict[int, Draft] = call_plugin(self._registry, self._drafter.plugin, self._drafter, queries)
            return drafts
        except PluginOff:
            return {}
        except PluginFailed as error:
            log.warning("A step has no drafts. %s", error)
            return {}

    def _query(self, seq: Seq, max_drafts: int) -> DraftQuery:
        request, params = seq.group.request, seq.group.request.params
        assert isinstance(params, SamplingParams)
        constants = self._constants.get(seq.id)
        if constants is None:
            adapters = tuple(use.ref.name for use in request.adapters)
            scope = hash_root(request.adapters, request.cache_salt)
            constants = self._constants[seq.id] = (seq_seed(seq.group.seed, seq.index), adapters, scope)
        seed, adapters, scope = constants
        return DraftQuery(
            seq_id=seq.id,
            token_ids=seq.tokens,
            prompt_len=seq.group.prompt_len,
            max_drafts=min(max_drafts, seq.max_len - len(seq.tokens) - 1),
            params=params,
            seed=seed,
            adapters=adapters,
            scope=scope,
        )

    def observe(self, plan: Plan, result: StepResult, seconds: float) -> None:
        """Learn from a step that took so many seconds after its drafts."""
        if not self.is_used:
            return
        self._counts.add(plan, result)
        if result.hidden and self._drafter is not None:
            begin, observe = perf_counter(), self._drafter.built.observe  # type: ignore[attr-defined]
            self._notify(observe, result.hidden, "could not read the hidden states")
            self._draft_s += perf_counter() - begin
        self._lengths.observe(plan, result, self._draft_s, seconds)
        if plan.ended:
            self._end(plan.ended)

    def _end(self, seq_ids: Sequence[int]) -> None:
        self._lengths.end(seq_ids)
        self._predictions.end(seq_ids)
        for seq_id in seq_ids:
            self._constants.pop(seq_id, None)
        if self._drafter is not None:
            self._notify(self._drafter.built.end, seq_ids, "could not free the state of ended sequences")

    def _notify(self, function: Callable[..., None], what: Sequence[Any], problem: str) -> None:
        assert self._drafter is not None
        try:
            call_plugin(self._registry, self._drafter.plugin, function, what)
        except QuireError as error:
            log.warning("The drafter %s. %s", problem, error)

    def stats(self) -> SpeculationStats | None:
        """Counts since the start; None if there is no drafter and no request had a prediction."""
        return self._counts.stats() if self._drafter is not None or self._counts.num_drafts else None


def _has_prediction(seq: Seq) -> bool:
    return bool(getattr(seq.group.request.params, "prediction_ids", ()))


def _may_speculate(seq: Seq, has_drafter: bool) -> bool:
    params = seq.group.request.params
    if not isinstance(params, SamplingParams) or params.speculative is False or len(seq.tokens) + 1 >= seq.max_len:
        return False
    return has_drafter or bool(params.prediction_ids)
