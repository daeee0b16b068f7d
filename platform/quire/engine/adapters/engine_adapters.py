"""The adapters of one model as its engine uses them: which requests use which revisions, and which have slots.

A request keeps the revisions that were current when it arrived. It holds their slots from its admission until it ends,
so an admitted request never waits for a slot.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

from quire.engine.adapters.admission import SlotAdmission
from quire.engine.adapters.attached_runtimes import AttachedRuntimes
from quire.engine.adapters.loader import AdapterLoader
from quire.engine.adapters.mapping import AdapterMapping
from quire.engine.adapters.modality_adapters import adapter_name, modality_adapters, with_modality_adapter
from quire.engine.adapters.registry import AdapterRegistry
from quire.engine.adapters.revision import AdapterRequest
from quire.engine.adapters.virtual_tokens import check_virtual_tokens, with_virtual_tokens
from quire.errors import BadRequest, ConfigError, NotFound, QuireError
from quire.isolation.isolated_calls import IsolatedCalls
from quire.records import Registry
from quire.settings.model_config import ModelConfig
from quire.types import Request, WeightedAdapter
from quire.types.adapter_info import AdapterStats

if TYPE_CHECKING:
    from quire.engine.loading.load import LoadedModel

log = logging.getLogger(__name__)

MAX_PER_REQUEST = 8
"""Adapters that one request may use."""

MAX_WEIGHT = 100.0
"""Largest absolute weight of an adapter in a request."""

DEFAULT_MAX_CPU_LORAS = 32
"""Adapters in host memory if the setting is 0; more if there are more slots."""

MAX_REPORTED = 64
"""Names of waiting adapters in the statistics."""


class EngineAdapters:
    """The engine thread's access to the adapters of one model. Any thread may use `registry`.

    mapping: the adapters of the runner's sequences, used by the engine thread.
    """

    def __init__(self, runtimes: AttachedRuntimes, config: ModelConfig, model: str, isolated: IsolatedCalls) -> None:
        self._runtimes = runtimes
        self._lock = RLock()
        self._max_slots = config.max_loras
        self._max_per_request = min(MAX_PER_REQUEST, config.max_loras)
        self._loader = AdapterLoader(runtimes, config.max_lora_rank, isolated)
        capacity = config.max_cpu_loras or max(DEFAULT_MAX_CPU_LORAS, config.max_loras)
        self.registry = AdapterRegistry(model, self._loader, capacity, self._max_per_request, self._lock)
        self.mapping = AdapterMapping(runtimes, self.registry.known)
        self._admission = SlotAdmission(config.max_loras, len(runtimes), self.registry.host_cache)
        self._requests: dict[str, AdapterRequest] = {}
        self._by_modality: dict[str, bool] = {}

    def load_for_modalities(self, folders: Mapping[str, Path]) -> None:
        """Load the adapters that prompts with a modality use, in order of precedence. Raises ConfigError.

        Without an adapter runtime, such prompts are refused.
        """
        for modality, folder in folders.items():
            self._by_modality[modality] = bool(len(self._runtimes))
            if not len(self._runtimes):
                log.warning("Prompts with %s are refused: their adapter in %s needs --enable-lora", modality, folder)
                continue
            try:
                self.registry.load(adapter_name(modality), folder).result()
            except QuireError as error:
                raise ConfigError(f"The adapter for prompts with {modality}, {folder}: {error.message}") from error

    @contextmanager
    def acquire(self, request: Request) -> Iterator[Request]:
        """The request with the current revisions of its adapters, and with their virtual tokens before its prompt.

        It uses them if the block ends without an error.

        A request without adapters gets that of its media, if the model has one.
        Raises BadRequest (too many adapters, invalid weights, virtual tokens of several adapters) and NotFound (an
        adapter is not loaded).
        """
        if self._by_modality:
            request = with_modality_adapter(request, self._by_modality)
        if not request.adapters:
            yield request
            return
        uses = self._validated(request.adapters)
        with self._lock:
            adapters = tuple(self.registry.find(use.ref.name) for use in uses)
            for adapter in adapters:
                adapter.num_active += 1
        try:
            named = [(replace(use, ref=adapter.ref), adapter) for use, adapter in zip(uses, adapters, strict=True)]
            found = tuple(use for use, _ in named)
            yield replace(request, prompt=with_virtual_tokens(request.prompt, named), adapters=found)
        except BaseException:
            with self._lock:
                for adapter in adapters:
                    self.registry.release_user(adapter)
            raise
        with self._lock:
            self._requests[request.id] = self._admission.enqueue(request.id, adapters)
            for adapter in adapters:
                adapter.num_requests_total += 1

    def _validated(self, uses: Sequence[WeightedAdapter]) -> list[WeightedAdapter]:
        """The adapters in order of name, so that equal sets share pages of the prefix cache."""
        if not len(self._runtimes):
            raise NotFound(
                f"The adapter `{uses[0].ref.name}` is not loaded: no adapter runtime is enabled (--enable-lora).",
                "model",
            )
        if len(uses) > self._max_per_request:
            raise BadRequest(
                f"A request can use at most {self._max_per_request} adapters together, got {len(uses)}.", "adapters"
            )
        for name, times in Counter(use.ref.name for use in uses).items():
            if times > 1:
                raise BadRequest(f"`adapters` names `{name}` {times} times; once is enough.", "adapters")
        for use in uses:
            if not math.isfinite(use.weight) or abs(use.weight) > MAX_WEIGHT:
                raise BadRequest(
                    f"The weight of an adapter must be from -{MAX_WEIGHT:g} to {MAX_WEIGHT:g}, got {use.weight}.",
                    "adapters",
                )
        return sorted(uses, key=lambda use: use.ref.name)

    def release(self, request_id: str) -> None:
        """Release the adapters of a request that ended; does nothing if it used none."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        with self._lock:
            self._admission.finish(request)
            for adapter in request.adapter_set:
                self.registry.release_user(adapter)

    def try_admit(self, request: Request) -> bool:
        """Whether the request uses no adapter, or has its slots, which it keeps until it ends.

        If not, other requests with the same adapters cannot be admitted either. Raises the error of an adapter that
        could not be read, and what runtimes raise.
        """
        adapter_request = self._requests.get(request.id)
        if adapter_request is None or adapter_request.holds_slots:
            return True
        with self._lock:
            for adapter in adapter_request.adapter_set:
                if adapter.error is not None:
                    raise adapter.error
                check_virtual_tokens(request.prompt, adapter)
            return self._admission.try_start(adapter_request)

    def yield_cpu(self, seconds: float) -> None:
        """Sleep if a request waits for slots, so that loader threads get a core. For an idle step loop."""
        if self._admission.has_waiting:
            time.sleep(seconds)

    @property
    def num_deferred(self) -> int:
        """Requests that wait for slots."""
        with self._lock:
            return self._admission.num_deferred

    def stats(self) -> AdapterStats | None:
        """Statistics; None without an adapter runtime."""
        if not len(self._runtimes):
            return None
        with self._lock:
            registry, tiers = self.registry, Counter(adapter.tier for adapter in self.registry.known.values())
            running, waiting = self._admission.names(MAX_REPORTED)
            num_running: Counter[str] = Counter()
            for adapter in self._admission.running:
                num_running[adapter.ref.name] += len(adapter.holding_requests)
            in_memory = [adapter.metadata for adapter in registry.known.values() if adapter.loaded is not None]
            return AdapterStats(
                max_slots=self._max_slots,
                num_loaded=tiers["device"],
                num_host=tiers["host"],
                num_disk=tiers["disk"],
                num_bytes=sum(metadata.num_bytes for metadata in in_memory if metadata),
                num_loads_total=registry.num_loads,
                num_load_failures_total=registry.num_failures,
                num_reads_total=registry.num_reads,
                num_evictions_total=registry.host_cache.num_evictions,
                running=running,
                waiting=waiting,
                num_running=num_running,
            )

    def close(self) -> None:
        self._loader.close()
        del self.registry.host_cache  # they refer to each other, and to the weights of adapters


def engine_adapters(
    runtimes: AttachedRuntimes, config: ModelConfig, registry: Registry, loaded: LoadedModel, isolated: IsolatedCalls
) -> EngineAdapters:
    """The adapters of an engine, with those that prompts with media use. Raises ConfigError if one cannot be used."""
    found = EngineAdapters(runtimes, config, loaded.info.name, isolated)
    found.load_for_modalities(modality_adapters(config, registry, loaded))
    return found
