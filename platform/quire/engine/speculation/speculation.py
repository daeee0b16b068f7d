"""The drafter of one model: which sequences get drafts, how many, and what is done with a drafter that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from quire.engine.loading.load import LoadedModel
from quire.engine.memory.ledger import MemoryBudget
from quire.engine.sampling.rng import seq_seed
from quire.engine.scheduler.seq import Seq
from quire.engine.speculation.config import SpeculativeConfig
from quire.engine.speculation.draft_lengths import DraftLengths
from quire.engine.speculation.draft_model.draft_model_loader import DraftModelLoader
from quire.errors import PluginFailed, PluginOff
from quire.hooks.call_stats import call_plugin, plugin_fault
from quire.params.sampling import SamplingParams
from quire.records import Context, Draft, Drafter, DrafterContext, DrafterImpl, DraftQuery, Registry
from quire.settings.model_config import ModelConfig
from quire.types import Plan, StepResult

log = logging.getLogger(__name__)

DRAFTERS = "quire_drafters"


class Speculation:
    """Drafts for the sequences of one model, with the drafter `built` of a plugin. A fault of it costs drafts only."""

    def __init__(
        self, registry: Registry, plugin: str, built: DrafterImpl, lengths: DraftLengths, vocab_size: int
    ) -> None:
        self._registry, self._plugin, self._built = registry, plugin, built
        self._lengths, self._vocab_size = lengths, vocab_size

    @property
    def memory_bytes(self) -> int:
        """What the drafter takes of the memory of the model's device."""
        return int(getattr(self._built, "memory_bytes", 0))

    def propose(self, seqs: Sequence[Seq]) -> Mapping[int, Sequence[int]]:
        """Drafts by seq id; seqs: those whose next chunk is one token that they sample after."""
        queries = [_query(seq, self._lengths.length(seq.id, len(seqs))) for seq in seqs if _may_speculate(seq)]
        queries = [query for query in queries if query.max_drafts > 0]
        if not queries:
            return {}
        try:
            drafts = call_plugin(self._registry, self._plugin, self._built.propose, queries)
            return self._checked(queries, drafts)
        except PluginOff:
            return {}
        except PluginFailed as error:
            log.warning("A step has no drafts. %s", error)
            return {}

    def _checked(self, queries: Sequence[DraftQuery], drafts: Sequence[Draft]) -> dict[int, Sequence[int]]:
        if len(drafts) != len(queries):
            raise self._fault(f"it proposed {len(drafts)} drafts for {len(queries)} sequences")
        found: dict[int, Sequence[int]] = {}
        for query, draft in zip(queries, drafts, strict=True):
            token_ids = draft.token_ids
            if len(token_ids) > query.max_drafts:
                raise self._fault(f"it drafted {len(token_ids)} tokens, more than the {query.max_drafts} asked for")
            if token_ids:
                if not 0 <= min(token_ids) <= max(token_ids) < self._vocab_size:
                    raise self._fault(f"it drafted a token id outside 0 … {self._vocab_size - 1}")
                found[query.seq_id] = token_ids
        return found

    def _fault(self, what: str) -> PluginFailed:
        return plugin_fault(self._registry, self._plugin, self._built.propose, what)

    def observe(self, plan: Plan, result: StepResult, seconds: float) -> None:
        """Learn from a step that took so many seconds."""
        self._lengths.observe(plan, result, seconds)
        if plan.ended:
            self._lengths.end(plan.ended)
            try:
                call_plugin(self._registry, self._plugin, self._built.end, plan.ended)
            except PluginFailed as error:
                log.warning("The drafter could not free the state of ended sequences. %s", error)


def _may_speculate(seq: Seq) -> bool:
    params = seq.group.request.params
    return isinstance(params, SamplingParams) and len(seq.tokens) + 1 < seq.max_len


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
    config: ModelConfig,
    registry: Registry,
    loaded: LoadedModel,
    context: Callable[[str], Context],
    budget: MemoryBudget,
) -> Speculation | None:
    """By --speculative-config, None without. context: of a plugin. budget: of the memory, which drafters take part of.

    Raises ConfigError.
    """
    if not config.speculative_config:
        return None
    known: Mapping[str, Drafter] = registry.by_hook(DRAFTERS)
    speculative = SpeculativeConfig.from_mapping(
        config.speculative_config, {name: drafter.settings for name, drafter in known.items()}
    )
    plugin = registry.plugin_of(DRAFTERS, speculative.method)
    needs_probs = speculative.acceptance == "rejection"
    drafter_context = DrafterContext(
        **vars(context(plugin)),
        settings=speculative.settings,
        target=loaded,
        max_drafts=speculative.num_speculative_tokens,
        max_num_seqs=config.max_num_seqs,
        max_model_len=loaded.info.max_model_len,
        needs_probs=needs_probs,
        load_draft_model=DraftModelLoader(
            config=config,
            registry=registry,
            target=loaded,
            budget=budget,
            max_drafts=speculative.num_speculative_tokens,
            needs_probs=needs_probs,
        ),
    )
    built = call_plugin(registry, plugin, known[speculative.method].build, drafter_context)
    lengths = DraftLengths(speculative.num_speculative_tokens, speculative.adaptive)
    return Speculation(registry, plugin, built, lengths, loaded.info.vocab_size)
