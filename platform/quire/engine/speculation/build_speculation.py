"""Builds the drafts of a model from --speculative-config."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from quire import hub
from quire.engine.loading.load import LoadedModel
from quire.engine.memory.ledger import MemoryBudget
from quire.engine.speculation.acceptance import acceptance_of
from quire.engine.speculation.built_drafter import BuiltDrafter
from quire.engine.speculation.draft_lengths import DraftLengths
from quire.engine.speculation.draft_model.draft_model_loader import DraftModelLoader
from quire.engine.speculation.predictions import MAX_PREDICTED
from quire.engine.speculation.speculation import Speculation
from quire.hooks.call_stats import call_plugin
from quire.records import Context, DemoModel, DrafterContext, Registry
from quire.settings.model_config import ModelConfig
from quire.settings.speculative_config import DRAFTERS, SpeculativeConfig


def build_speculation(
    config: ModelConfig,
    registry: Registry,
    loaded: LoadedModel,
    context: Callable[[str], Context],
    budget: MemoryBudget,
) -> Speculation:
    """By --speculative-config; without it only predictions are drafts. context: of a plugin. budget: of the memory,
    which drafters take part of.

    Raises ConfigError.
    """
    speculative = SpeculativeConfig.from_registry(config.speculation, registry)
    if speculative is None:
        return Speculation(registry, None, DraftLengths(MAX_PREDICTED, adaptive=True))
    plugin = registry.plugin_of(DRAFTERS, speculative.method)
    most, wants_probs = speculative.num_speculative_tokens, speculative.acceptance == "rejection"
    demos: Iterable[DemoModel] = registry.all("quire_demo_models")
    folders = {name: folder for demo in demos for name, folder in demo.drafts().items()}
    drafter_context = DrafterContext(
        **vars(context(plugin)),
        settings=speculative.settings,
        target=loaded,
        max_drafts=most,
        max_num_seqs=config.max_num_seqs,
        max_model_len=loaded.info.max_model_len,
        load_draft_model=DraftModelLoader(
            config=config,
            registry=registry,
            target=loaded,
            context=context(plugin),
            budget=budget,
            max_drafts=most,
            wants_probs=wants_probs,
            draft_folders=folders,
        ),
        wants_probs=wants_probs,
        find_folder=partial(_find_folder, config, folders),
    )
    built = call_plugin(registry, plugin, registry.by_hook(DRAFTERS)[speculative.method].build, drafter_context)
    return Speculation(
        registry,
        BuiltDrafter(plugin, built, most, loaded.info.vocab_size),
        DraftLengths(max(most, MAX_PREDICTED), speculative.adaptive),
        acceptance_of(speculative),
    )


def _find_folder(config: ModelConfig, demos: Mapping[str, Path], model: str, revision: str | None) -> Path:
    if model in demos and not Path(model).exists():
        return demos[model]
    return hub.resolve_heads(model, config, revision)
