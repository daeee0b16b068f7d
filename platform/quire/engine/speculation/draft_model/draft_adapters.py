"""Adapters of a draft model: they are read and put in slots at the start, where they stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from quire.engine.adapters.attached_runtimes import HOOK as ADAPTER_RUNTIMES, AttachedRuntimes
from quire.engine.adapters.engine_adapters import EngineAdapters
from quire.engine.adapters.mapping import AdapterMapping
from quire.engine.loading.load import LoadedModel
from quire.errors import ConfigError, QuireError
from quire.hub import adapter_cache
from quire.isolation.isolated_calls import IsolatedCalls
from quire.params.sampling import SamplingParams
from quire.records import Context, DraftQuery, Registry
from quire.settings.model_config import ModelConfig
from quire.settings.speculative_config import FLAG
from quire.types import AdapterRef, NewSeq, Prompt, Request, WeightedAdapter
from quire_models.loading.checkpoint import raw_config

_KEY = f"`lora` of {FLAG}"
EVERY = ""
"""The name of an adapter that drafts for all requests without one of their own."""


@dataclass(frozen=True)
class DraftAdapters:
    """uses: the adapters by the name that requests choose them with. memory_bytes: of all."""

    mapping: AdapterMapping
    uses: Mapping[str, WeightedAdapter]
    memory_bytes: int = 0

    def start(self, query: DraftQuery) -> None:
        """Give a sequence the adapter that its request names, or that of all requests, else one with the name of an
        adapter of the request."""
        chosen = (query.params.speculative_lora or EVERY, *query.adapters)
        use = next((self.uses[name] for name in chosen if name in self.uses), None)
        if use is not None:
            self.mapping.start(
                NewSeq(query.seq_id, query.params, query.seed, prompt_ids=(), output_ids=(), adapters=(use,))
            )


def no_adapters(registry: Registry, loaded: LoadedModel) -> DraftAdapters:
    """Of a draft model that no adapter changes."""
    records = {hook: found for hook, found in registry.records.items() if hook != ADAPTER_RUNTIMES}
    without = replace(registry, records=MappingProxyType(records))
    return DraftAdapters(AdapterMapping(AttachedRuntimes(without, lambda plugin: Context(), loaded.module), {}), {})


def load_draft_adapters(
    given: Mapping[str, str], config: ModelConfig, registry: Registry, loaded: LoadedModel, context: Context
) -> DraftAdapters:
    """Read adapters and attach them to a draft model.

    given: the folder of each name, or a name that plugins find it by. config, context: of the served model. Raises
    ConfigError.
    """
    if not registry.by_hook(ADAPTER_RUNTIMES):
        raise ConfigError(f"{_KEY} needs an adapter runtime: add --enable-lora.")
    isolated = IsolatedCalls(config.lora_load_timeout_s)
    own = replace(
        context,
        vocab_size=loaded.info.vocab_size,
        config=raw_config(Path(loaded.info.folder)),
        folder=loaded.info.folder,
        names=loaded.names,
        max_slots=len(given),
        in_subprocess=isolated,
    )
    try:
        runtimes = AttachedRuntimes(
            registry, lambda plugin: replace(own, options=registry.options.get(plugin, {})), loaded.module
        )
        sizes = replace(config, max_loras=len(given), max_cpu_loras=len(given) + 1)
        adapters = EngineAdapters(runtimes, sizes, loaded.info.name, isolated)
    except BaseException:
        isolated.close()
        raise
    try:
        uses = {name: _in_slot(adapters, name, path, registry, loaded) for name, path in given.items()}
        return DraftAdapters(adapters.mapping, uses, sum(info.num_bytes for info in adapters.registry.infos()))
    finally:
        adapters.close()  # nothing is read later


def _in_slot(
    adapters: EngineAdapters, name: str, path: str, registry: Registry, loaded: LoadedModel
) -> WeightedAdapter:
    called = name or "lora"
    try:
        folder = Path(path).expanduser().absolute()
        if not folder.is_dir():
            source = registry.resolve_adapter(path, loaded.info.folder, adapter_cache(None))
            if source is None:
                raise ConfigError("it is no folder of an adapter, and no plugin finds an adapter of that name")
            folder = source.path
        info = adapters.registry.load(called, folder).result()
        if info.virtual_tokens:
            raise ConfigError("it puts virtual tokens before the prompt, which the served model does not have there")
        named = (WeightedAdapter(AdapterRef(name=called)),)
        request = Request(id=called, prompt=Prompt(token_ids=(0,)), params=SamplingParams(), adapters=named)
        with adapters.acquire(request) as acquired:
            pass
        if not adapters.try_admit(acquired):
            raise ConfigError("there is no slot for it")
    except QuireError as error:
        raise ConfigError(f"{_KEY}: the adapter {path!r:.200} cannot be used: {error.message.rstrip('.')}.") from error
    return acquired.adapters[0]
