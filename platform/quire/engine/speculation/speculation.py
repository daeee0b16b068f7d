"""The drafter of one model: which sequences get drafts, how many, and what is done with a drafter that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

from quire.engine.loading.load import LoadedModel
from quire.engine.memory.ledger import MemoryBudget
from quire.engine.sampling.rng import seq_seed
from quire.engine.scheduler.page_pool import hash_root
from quire.engine.scheduler.seq import Seq
from quire.engine.speculation.acceptance import Acceptance, acceptance_of
from quire.engine.speculation.config import SpeculativeConfig
from quire.engine.speculation.draft_lengths import DraftLengths
from quire.engine.speculation.draft_model.draft_model_loader import DraftModelLoader
from quire.errors import PluginFailed, PluginOff
from quire.hooks.call_stats import call_plugin, plugin_fault
from quire.params.sampling import SamplingParams
from quire.records import Context, Draft, Drafter, DrafterContext, DrafterImpl, DraftQuery, ReadsHidden, Registry
from quire.settings.model_config import ModelConfig
from quire.types import Plan, StepResult

log = logging.getLogger(__name__)

DRAFTERS = "quire_drafters"


class Speculation:
    """Drafts for the sequences of one model, with the drafter `built` of a plugin. A fault of it costs drafts only.

    acceptance: for the runner, None = exact.
    """

    def __init__(
        self,
        registry: Registry,
        plugin: str,
        built: DrafterImpl,
        lengths: DraftLengths,
        vocab_size: int,
        acceptance: Acceptance | None = None,
    ) -> None:
        self.acceptance = acceptance
        self._registry, self._plugin, self._built = registry, plugin, built
        self._lengths, self._vocab_size = lengths, vocab_size
        self._draft_s = 0.0  # of the step at hand
        self._constants: dict[int, tuple[int, tuple[str, ...], bytes]] = {}  # seed, adapters, scope by seq id

    @property
    def memory_bytes(self) -> int:
        """What the drafter takes of the memory of the model's device."""
        return int(getattr(self._built, "memory_bytes", 0))

    def propose(self, seqs: Sequence[Seq]) -> Mapping[int, Draft]:
        """Drafts by seq id; seqs: those whose next chunk is one token that they sample after."""
        begin, self._draft_s = perf_counter(), 0.0
        lengths = self._lengths.choose([seq.id for seq in seqs])
        queries = [
            self._query(seq, length) for seq, length in zip(seqs, lengths, strict=True) if length and _has_room(seq)
        ]
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
        finally:
            self._draft_s = perf_counter() - begin

    def _checked(self, queries: Sequence[DraftQuery], drafts: Sequence[Draft]) -> dict[int, Draft]:
        if len(drafts) != len(queries):
            raise self._fault(f"it proposed {len(drafts)} drafts for {len(queries)} sequences")
        found: dict[int, Draft] = {}
        for query, draft in zip(queries, drafts, strict=True):
            token_ids = draft.token_ids
            if len(token_ids) > query.max_drafts:
                raise self._fault(f"it drafted {len(token_ids)} tokens, more than the {query.max_drafts} asked for")
            if token_ids:
                if not 0 <= min(token_ids) <= max(token_ids) < self._vocab_size:
                    raise self._fault(f"it drafted a token id outside 0 … {self._vocab_size - 1}")
                if draft.probs is not None and draft.probs.shape != (len(token_ids), self._vocab_size):
                    raise self._fault(f"its probabilities have the shape {list(draft.probs.shape)}")
                found[query.seq_id] = draft
        return found

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

    def _fault(self, what: str) -> PluginFailed:
        return plugin_fault(self._registry, self._plugin, self._built.propose, what)

    def observe(self, plan: Plan, result: StepResult, seconds: float) -> None:
        """Learn from a step that took so many seconds after its drafts."""
        self._lengths.observe(plan, result, self._draft_s, seconds)
        if plan.ended:
            self._lengths.end(plan.ended)
            for seq_id in plan.ended:
                self._constants.pop(seq_id, None)
            self._notify(self._built.end, plan.ended, "could not free the state of ended sequences")
        if result.hidden:
            self._notify(self._built.observe, result.hidden, "could not read the hidden states")  # type: ignore[attr-defined]

    def _notify(self, function: Callable[..., None], what: Sequence[Any], problem: str) -> None:
        try:
            call_plugin(self._registry, self._plugin, function, what)
        except PluginFailed as error:
            log.warning("The drafter %s. %s", problem, error)

    @property
    def reads_hidden(self) -> ReadsHidden | None:
        """The hidden states that the drafter reads; None if it reads none."""
        return getattr(self._built, "reads_hidden", None)


def _has_room(seq: Seq) -> bool:
    params = seq.group.request.params
    return isinstance(params, SamplingParams) and len(seq.tokens) + 1 < seq.max_len


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
    drafter_context = DrafterContext(
        **vars(context(plugin)),
        settings=speculative.settings,
        target=loaded,
        max_drafts=speculative.num_speculative_tokens,
        max_num_seqs=config.max_num_seqs,
        max_model_len=loaded.info.max_model_len,
        load_draft_model=DraftModelLoader(
            config=config,
            registry=registry,
            target=loaded,
            budget=budget,
            max_drafts=speculative.num_speculative_tokens,
        ),
        wants_probs=speculative.acceptance == "rejection",
    )
    built = call_plugin(registry, plugin, known[speculative.method].build, drafter_context)
    lengths = DraftLengths(speculative.num_speculative_tokens, speculative.adaptive)
    return Speculation(registry, plugin, built, lengths, loaded.info.vocab_size, acceptance_of(speculative))
