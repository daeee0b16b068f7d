"""Builds the engines of the engine process and divides its memory among them."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from quire.engine_process.model_summary import summary
from quire.engine_process.replicas.share import ReplicaShare
from quire.engine_process.step_loop import EngineProtocol
from quire.engine_process.wire.memory_plan import MemoryPlan
from quire.errors import CheckpointError, UnknownArchitecture
from quire.isolation.process_pool import ProcessPool
from quire.isolation.process_state import resident_bytes
from quire.records import Registry
from quire.settings.model_config import ModelConfig
from quire.text.tokenizer.shared import SharedTokenizers

if TYPE_CHECKING:
    from quire.engine.engine import Engine
    from quire.engine.kv_events.sender import EventSender
    from quire.engine.kv_tiers.build import SharedTiers
    from quire.engine.memory.ledger import MemoryBudget, MemoryLedger
    from quire.text.tokenizer.tokenizer import Tokenizer

log = logging.getLogger("quire.engine_process")


TIERS = "(KV pages in host memory)"
"""The name of the tiers of KV pages in the account of memory."""


class EngineBuilder:
    """Keeps what all models share: the ledgers of memory, the publisher of KV events, the tiers of KV pages, the
    processes that read files of adapters, and equal tokenizers.

    torch is imported with the first engine, or to limit its threads.

    share: what the process may take of the machine; None = all. kv_events: the object of --kv-events-config. plan: what
    all models together may take.
    """

    def __init__(
        self,
        share: ReplicaShare | None = None,
        kv_events: Mapping[str, Any] | None = None,
        plan: MemoryPlan | None = None,
    ) -> None:
        self._ledgers: dict[bool, MemoryLedger] = {}
        """Of the CPU (True) and, if there is a budget, of the GPU."""
        self._share, self._plan = share, plan or MemoryPlan()
        self._kv_events = kv_events or {}
        self._event_sender: EventSender | None = None
        self._tiers: SharedTiers | None = None
        self._processes = ProcessPool()
        self._closed: list[ref[object]] = []
        self._tokenizers = SharedTokenizers()
        if share is not None:
            share.apply(os.environ)

    def build(
        self,
        config: ModelConfig,
        registry: Registry,
        num_left: int,
        on_progress: Callable[[float], None] | None = None,
    ) -> EngineProtocol:
        """An engine with an equal share of the free memory. `num_left`: how many models, this one included, share it.

        on_progress: gets the fraction of the weights that is loaded; what it raises ends the load. Raises StartupError
        if the model cannot be loaded or does not fit.
        """
        from quire.engine.build import build_engine
        from quire.engine.loading.load import choose_device
        from quire.engine.memory.dummy_batch import run_first_step
        from quire.engine.memory.system_memory import free_bytes
        from quire.engine.overlap.beside_steps import beside_steps
        from quire.hooks.plugins_off import with_advice

        on_cpu = choose_device(config.device).type == "cpu"
        ledger = self._ledger(on_cpu)
        free = free_bytes() if on_cpu else 0
        if not on_cpu:
            budget = device_budget(config, (1 if ledger else num_left) * self._num_on_device)
            free = budget.total
        found = self._with_tiers(self._with_events(registry))
        self._count_tiers(config)
        if ledger is not None:
            budget = ledger.budget(num_left, free)
        began = time.monotonic()
        log.info("loading %s from %s", config.name, config.model)
        try:
            with beside_steps(on_cpu):
                engine = build_engine(
                    config,
                    found,
                    budget,
                    partial(tokenizer_of, config, self._tokenizers),
                    on_progress,
                    processes=self._processes,
                )
                if on_cpu and config.num_ranks == 1:
                    try:  # what it makes would hold up the first request
                        run_first_step(engine.loaded, config.page_size)
                    except Exception:  # the model may need more than text
                        log.warning("the first step of %s failed", config.name, exc_info=True)
        except UnknownArchitecture as error:
            raise with_advice(error, registry) from error
        finally:  # the tier is as large as before, if the model was not loaded
            self._count_tiers()
        description = summary(engine.info, config)
        log.info("%s is loaded after %.1f s: %s", config.name, time.monotonic() - began, description)
        if ledger is not None:
            ledger.enter(engine, config.name, engine.memory)
        return engine

    def _ledger(self, on_cpu: bool) -> MemoryLedger | None:
        """The account of a device; None for a GPU without a budget, of which each model takes what is free."""
        from quire.engine.memory.ledger import MemoryLedger
        from quire.engine.memory.system_memory import free_bytes

        if on_cpu not in self._ledgers:
            if on_cpu:
                limit = free_bytes() if self._share is None else min(free_bytes(), self._share.memory_bytes)
                limit = self._plan.for_models(limit, resident_bytes(os.getpid()))
            elif self._plan.budget is None:
                return None
            else:  # the process itself takes memory of the CPU
                limit = self._plan.budget
            self._ledgers[on_cpu] = MemoryLedger(limit, self._plan.num_models)
        return self._ledgers[on_cpu]

    def memory_limit(self) -> int:
        """Bytes that all models together may take; 0 = not known, which holds for servers whose models stay."""
        if self._plan == MemoryPlan():
            return 0
        import quire.engine.build  # noqa: F401  # its memory is not for models
        from quire.engine.loading.load import choose_device

        ledger = self._ledger(choose_device("auto").type == "cpu")
        of_tiers = self._tiers.memory().total if self._tiers is not None else 0
        return 0 if ledger is None else max(0, ledger.available - of_tiers)

    def _count_tiers(self, config: ModelConfig | None = None) -> None:
        """Count the tier of KV pages in host memory, as large as the models need it, this one too."""
        ledger = self._ledgers.get(True)
        if ledger is None or self._tiers is None:
            return
        if (use := self._tiers.memory(config)).total:
            ledger.enter(self._tiers, TIERS, use)
        else:
            ledger.leave(self._tiers)

    def _with_events(self, registry: Registry) -> Registry:
        """A registry with what gets KV events, if they are to be published."""
        from quire.engine.kv_events.build import build_sender

        if self._event_sender is None:
            number = 0 if self._share is None else self._share.index
            self._event_sender = build_sender(self._kv_events, registry, number)
        return registry if self._event_sender is None else replace(registry, put_kv_event=self._event_sender.put)

    def _with_tiers(self, registry: Registry) -> Registry:
        """A registry with the tiers of KV pages, which outlive the models."""
        from quire.engine.kv_tiers.build import SharedTiers

        if self._tiers is None:
            self._tiers = SharedTiers(registry)
        return replace(registry, kv_tiers=self._tiers.open)

    @property
    def _num_on_device(self) -> int:
        """Engine processes that share a GPU."""
        return 1 if self._share is None else self._share.num_on_device

    def close(self, engine: Engine) -> None:
        """Close an engine that takes no more requests. This takes some time."""
        import torch

        self._closed += [ref(engine), ref(engine.loaded.module)]
        engine.close()
        for ledger in self._ledgers.values():
            ledger.leave(engine)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def free_memory(self) -> None:
        """Return the memory of closed engines to the system: also of those that something of theirs refers to."""
        closed, self._closed = self._closed, []
        if any(each() is not None for each in closed):  # a collection takes milliseconds, in which no step can begin
            gc.collect()
        with suppress(AttributeError, OSError):  # only glibc has malloc_trim
            ctypes.CDLL(None).malloc_trim(0)

    def can_free_caches(self, config: ModelConfig) -> bool:
        """Whether the weights of a model can stay while its KV cache is freed: on a CPU, in one process."""
        from quire.engine.loading.load import choose_device

        return config.num_ranks == 1 and choose_device(config.device).type == "cpu"

    def free_caches(self, config: ModelConfig, engine: Engine) -> bool:
        """Free the KV cache of an engine without requests; False: it is not possible. Its weights stay."""
        if not self.can_free_caches(config) or not engine.free_caches():
            return False
        if engine.kv_pages is not None:  # it wakes with its own share, which is reserved then
            engine.kv_pages.resize(engine.kv_pages.share)
        self._ledgers[True].enter(engine, config.name, replace(engine.memory, kv_cache=0, swap=0))
        return True

    def restore_caches(self, config: ModelConfig, engine: Engine) -> None:
        """Reserve the KV cache again, which gets memory as it is written. Raises ConfigError if too little is left."""
        from quire.engine.memory.ledger import check_fits
        from quire.engine.memory.system_memory import free_bytes

        ledger = self._ledgers[True]  # it was made with the engine
        freed = replace(engine.memory, weights=0, state=0, encoder_cache=0, drafter=0)
        check_fits(config.name, freed, ledger.budget(1, free_bytes()).total)
        ledger.enter(engine, config.name, engine.memory)

    def end(self) -> None:
        """Publish the last KV events, close the tiers of KV pages, and end processes."""
        self._processes.close()
        if self._tiers is not None:
            self._tiers.close()
        if self._event_sender is not None:
            self._event_sender.close()

    def log_memory(self) -> None:
        """Log a table of the memory that each model has reserved."""
        for on_cpu, ledger in self._ledgers.items():
            if ledger.reserved:
                log.info("memory reserved on the %s:\n%s", "CPU" if on_cpu else "GPU", ledger.table())


def device_budget(config: ModelConfig, num_left: int) -> MemoryBudget:
    """An equal share of the GPU memory that --gpu-memory-utilization allows and that is free."""
    import torch

    from quire.engine.memory.ledger import MemoryBudget

    free, total = torch.cuda.mem_get_info()
    share = max(0, int(free - total * (1 - config.gpu_memory_utilization))) // num_left
    return MemoryBudget(total=share, kv_cache=share, max_kv_cache=share)


def tokenizer_of(config: ModelConfig, shared: SharedTokenizers | None = None) -> Tokenizer | None:
    """The tokenizer of a model, or None: prompts of token ids work without one, and the server reports the error."""
    from quire import hub

    try:
        folder = hub.resolve_tokenizer(config, hub.resolve(config.model, config))
        return (shared or SharedTokenizers()).load(folder, config.tokenizer_mode, config.trust_remote_code)
    except CheckpointError:
        return None
