"""Builds the tiers that the settings of a model name."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from threading import Lock

from quire.engine.adapters.revision import AdapterRevision
from quire.engine.kv_events.page_log import PageLog
from quire.engine.kv_tiers.digests import Unreadable
from quire.engine.kv_tiers.host_store import HostStore
from quire.engine.kv_tiers.keys import PageKeys, weight_paths
from quire.engine.kv_tiers.kv_tiers import KvTiers
from quire.engine.kv_tiers.model_scope import ModelScope
from quire.engine.kv_tiers.tier import Tier
from quire.engine.kv_tiers.tier_stack import TierStack
from quire.engine.loading.load import LoadedModel
from quire.engine.memory.ledger import MemoryUse
from quire.hooks.call_stats import call_plugin
from quire.records import KvStore, KvStoreContext, Registry
from quire.settings.model_config import ModelConfig
from quire.settings.model_groups.kv_tiers_config import STORES, ChosenStore
from quire.types import AdapterRef

log = logging.getLogger(__name__)

HOST = "host"
"""Name of the tier in host memory."""


class SharedTiers:
    """The tiers of a process: models with the same settings share stores, and all models share host memory.

    They outlive the models, so that a model that is loaded again finds its pages.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._host: Tier | None = None
        self._stores: dict[str, Tier] = {}
        self._lock = Lock()

    def open(self, config: ModelConfig) -> TierStack:
        """The tiers for a model. Raises ConfigError. Host memory is as large as the model with the most asks for."""
        with self._lock:
            tiers = []
            if (capacity := int(config.kv_offloading_size * 2**30)) > 0:
                if self._host is None:
                    self._host = Tier(HOST, HostStore(capacity))
                assert isinstance(self._host.store, HostStore)
                self._host.store.capacity = max(capacity, self._host.store.capacity)
                tiers.append(self._host)
            for chosen in config.kv_stores(self._registry):
                name = repr((chosen.store, sorted(chosen.settings.items(), key=repr)))
                if name not in self._stores:
                    self._stores[name] = _tier(chosen, self._registry)
                tiers.append(self._stores[name])
            return TierStack(tiers)

    def memory(self, config: ModelConfig | None = None) -> MemoryUse:
        """What the tier in host memory may take, with this model too."""
        has = self._host.store.capacity if self._host is not None and isinstance(self._host.store, HostStore) else 0
        return MemoryUse(weights=0, swap=max(has, int(config.kv_offloading_size * 2**30) if config else 0))

    def close(self) -> None:
        """Close all stores of the process."""
        TierStack([*([self._host] if self._host is not None else []), *self._stores.values()]).close()


def _tier(chosen: ChosenStore, registry: Registry) -> Tier:
    """Raises ConfigError, and PluginFailed if the plugin does."""
    record: KvStore = registry.by_hook(STORES)[chosen.store]
    plugin = registry.plugin_of(STORES, record.name)
    context = KvStoreContext(options=registry.options.get(plugin, {}), settings=chosen.settings)
    store = call_plugin(registry, plugin, record.build, context)
    return Tier(record.name, store, partial(call_plugin, registry, plugin), record.timeout_s)


def build_kv_tiers(
    config: ModelConfig,
    registry: Registry,
    loaded: LoadedModel,
    known: Mapping[AdapterRef, AdapterRevision],
) -> KvTiers:
    """The tiers of a model's pages; without any if it has none, or if its pages cannot be kept. known: its adapters.

    Raises ConfigError for settings that cannot be.
    """
    keys, page_log = PageKeys(config.page_size, known), PageLog.from_registry(registry, config.name, config.page_size)
    if not config.has_kv_tiers:
        return KvTiers(None, keys, page_log)
    if (reason := _why_not(config, loaded)) is not None:
        config.kv_stores(registry)
        log.warning("The KV pages of %s are kept on the device only: %s.", config.name, reason)
        return KvTiers(None, keys, page_log)
    open_tiers = registry.kv_tiers or SharedTiers(registry).open
    stack: TierStack = open_tiers(config)
    scope = ModelScope(config, loaded, stack, keys)
    return KvTiers(stack, keys, page_log, scope, closes_stack=registry.kv_tiers is None)


def _why_not(config: ModelConfig, loaded: LoadedModel) -> str | None:
    """Why pages of a model cannot be kept beside the device's memory, if so."""
    if any(shape is not None for shape in loaded.decoder.state_shapes):
        return "it has recurrent state, without which pages do not suffice to go on"
    if not config.enable_prefix_caching or loaded.decoder.non_causal:
        return "it has no prefix cache"
    if config.num_ranks > 1:
        return "each of its ranks has a part of every page"
    if not any(shape.kv_heads * shape.head_dim for shape in loaded.decoder.kv_shapes):
        return "its pages hold nothing"
    try:
        weight_paths(config, loaded)
    except (Unreadable, OSError) as error:
        return f"its checkpoint has no digest ({error})"
    return None
