"""The drafts of one model: which sequences get drafts, from their prediction or from the drafter, how many, and what
is done with a drafter that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index

from quire.engine.loading.load import LoadedModel
from quire.engine.sampling.rng import seq_seed
from quire.engine.scheduler.seq import Seq
from quire.engine.speculation.draft_counts import DraftCounts
from quire.engine.speculation.draft_lengths import DraftLengths
from quire.engine.speculation.predictions import MAX_PREDICTED, Predictions
from quire.errors import PluginFailed, PluginOff, QuireError
from quire.hooks.call_stats import call_plugin
from quire.params.sampling import SamplingParams
from quire.records import Context, DrafterContext, DrafterImpl, DraftQuery, Registry
from quire.settings.model_config import ModelConfig
from quire.settings.speculative_config import DRAFTERS, SpeculativeConfig
from quire.types import Plan, SpeculationStats, StepResult

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BuiltDrafter:
    """The drafter of a plugin. max_drafts: per sequence and step. vocab_size: of the model."""

    plugin: str
    built: DrafterImpl
    max_drafts: int
    vocab_size: int

    @property
    def name(self) -> str:
        """Of what is called, for errors."""
        return f"{type(self.built).__qualname__}.propose"

    def __call__(self, queries: Sequence[DraftQuery]) -> dict[int, Sequence[int]]:
        """Drafts by seq id. Raises ValueError, TypeError or AttributeError if they are not what was asked for."""
        try:
            drafts = self.built.propose(queries)
        except QuireError as error:  # it would be taken for an intended answer, which there is none of
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        if len(drafts) != len(queries):
            raise ValueError(f"{len(drafts)} drafts for {len(queries)} sequences")
        found: dict[int, Sequence[int]] = {}
        for query, draft in zip(queries, drafts, strict=True):
            if len(draft.token_ids) > query.max_drafts:
                raise ValueError(f"{len(draft.token_ids)} tokens drafted, more than the {query.max_drafts} asked for")
            token_ids = list(map(index, draft.token_ids))
            if token_ids:
                if not 0 <= min(token_ids) <= max(token_ids) < self.vocab_size:
                    raise ValueError(f"a drafted token id is outside 0 … {self.vocab_size - 1}")
                found[query.seq_id] = token_ids
        return found


class Speculation:
    """Drafts for the sequences of one model. A fault of the drafter costs drafts only.

    drafter: None = only sequences with a prediction get drafts.
    """

    def __init__(self, registry: Registry, drafter: BuiltDrafter | None, lengths: DraftLengths) -> None:
        self._registry, self._drafter, self._lengths = registry, drafter, lengths
        self._predictions, self._counts = Predictions(), DraftCounts()
        self._is_used = drafter is not None

    def propose(self, seqs: Sequence[Seq]) -> Mapping[int, Sequence[int]]:
        """Drafts by seq id; seqs: those whose next chunk is one token that they sample after."""
        self._is_used = self._drafter is not None or any(map(_has_prediction, seqs))
        if not self._is_used:
            return {}
        queries = [_query(seq, self._lengths.length(seq.id, len(seqs))) for seq in seqs if _may_speculate(seq)]
        queries = [query for query in queries if query.max_drafts > 0]
        predicted = {query.seq_id: draft for query in queries if (draft := self._predictions.draft(query))}
        return self._drafted([query for query in queries if query.seq_id not in predicted]) | predicted

    def _drafted(self, queries: Sequence[DraftQuery]) -> dict[int, Sequence[int]]:
        """Drafts of the drafter, by seq id."""
        if self._drafter is None or not queries:
            return {}
        most = self._drafter.max_drafts
        queries = [query if query.max_drafts <= most else replace(query, max_drafts=most) for query in queries]
        try:
            drafts: dict[int, Sequence[int]] = call_plugin(self._registry, self._drafter.plugin, self._drafter, queries)
            return drafts
        except PluginOff:
            return {}
        except PluginFailed as error:
            log.warning("A step has no drafts. %s", error)
            return {}

    def observe(self, plan: Plan, result: StepResult, seconds: float) -> None:
        """Learn from a step that took so many seconds."""
        if self._is_used:
            self._counts.add(plan, result)
            self._lengths.observe(plan, result, seconds)
        if plan.ended:
            self._lengths.end(plan.ended)
            self._predictions.end(plan.ended)
            self._end_drafts(plan.ended)

    def _end_drafts(self, seq_ids: Sequence[int]) -> None:
        if self._drafter is None:
            return
        try:
            call_plugin(self._registry, self._drafter.plugin, self._drafter.built.end, seq_ids)
        except QuireError as error:
            log.warning("The drafter could not free the state of ended sequences. %s", error)

    def stats(self) -> SpeculationStats | None:
        """Counts since the start; None if there is no drafter and no request had a prediction."""
        return self._counts.stats() if self._drafter is not None or self._counts.num_drafts else None


def _has_prediction(seq: Seq) -> bool:
    params = seq.group.request.params
    return isinstance(params, SamplingParams) and bool(params.prediction_ids)


def _may_speculate(seq: Seq) -> bool:
    params = seq.group.request.params
    return isinstance(params, SamplingParams) and params.speculative is not False and len(seq.tokens) + 1 < seq.max_len


def _query(seq: Seq, max_drafts: int) -> DraftQuery:
    request, params = seq.group.request, seq.group.request.params
    assert isinstance(params, SamplingParams)
    return DraftQuery(
        seq_id=seq.id,
        token_ids=seq.tokens,
        prompt_len=seq.group.prompt_len,
        max_drafts=min(max_drafts, seq.max_len - len(seq.tokens) - 1),
        params=params,
        seed=seq_seed(seq.group.seed, seq.index),
        adapters=tuple(use.ref.name for use in request.adapters),
    )


def build_speculation(
    config: ModelConfig, registry: Registry, loaded: LoadedModel, context: Callable[[str], Context]
) -> Speculation:
    """By --speculative-config; without it only predictions are drafts. context: of a plugin. Raises ConfigError."""
    speculative = SpeculativeConfig.from_registry(config.speculation, registry)
    if speculative is None:
        return Speculation(registry, None, DraftLengths(MAX_PREDICTED, adaptive=True))
    plugin = registry.plugin_of(DRAFTERS, speculative.method)
    most = speculative.num_speculative_tokens
    drafter_context = DrafterContext(
        **vars(context(plugin)),
        settings=speculative.settings,
        target=loaded,
        max_drafts=most,
        max_num_seqs=config.max_num_seqs,
        max_model_len=loaded.info.max_model_len,
    )
    built = call_plugin(registry, plugin, registry.by_hook(DRAFTERS)[speculative.method].build, drafter_context)
    lengths = DraftLengths(max(most, MAX_PREDICTED), speculative.adaptive)
    return Speculation(registry, BuiltDrafter(plugin, built, most, loaded.info.vocab_size), lengths)
