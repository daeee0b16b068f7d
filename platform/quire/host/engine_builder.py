"""`EngineBuilder`: makes the engines of a process, which share its memory."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from quire.config import ModelConfig
from quire.errors import CheckpointError, UnknownArchitecture
from quire.host.loop import Steps
from quire.records import Registry

if TYPE_CHECKING:
    from quire.engine.memory_ledger import MemoryBudget, MemoryLedger
    from quire.text.tokenizer import Tokenizer

log = logging.getLogger("quire.host")


class EngineBuilder:
    """Keeps the ledger of host memory. It imports torch when it builds its first engine."""

    def __init__(self) -> None:
        self._ledger: MemoryLedger | None = None

    def build(self, config: ModelConfig, registry: Registry, num_left: int) -> Steps:
        """An engine with its share of the memory that is left, one of `num_left` that are loaded together.

        Raises StartupError: the model cannot be loaded, or does not fit.
        """
        from quire.engine.engine import Engine
        from quire.engine.load import choose_device
        from quire.engine.memory_ledger import MemoryLedger
        from quire.engine.model_summary import summary
        from quire.engine.system_memory import free_bytes
        from quire.plugins_off import with_advice

        on_cpu = choose_device(config.device).type == "cpu"
        if self._ledger is None:
            self._ledger = MemoryLedger(free_bytes())
        budget = self._ledger.budget(num_left) if on_cpu else device_budget(config, num_left)
        began = time.monotonic()
        log.info("loading %s from %s", config.name, config.model)
        try:
            engine = Engine.build(config, registry, budget, lambda: tokenizer_of(config))
        except UnknownArchitecture as error:
            raise with_advice(error, registry) from error
        about = summary(engine.loaded, engine.info, config)
        log.info("%s is loaded after %.1f s: %s", config.name, time.monotonic() - began, about)
        if on_cpu:
            self._ledger.enter(engine, config.name, engine.memory)
        return engine

    def log_memory(self) -> None:
        """One table of what each model has reserved."""
        if self._ledger is not None and self._ledger.reserved:
            log.info("memory reserved on the CPU:\n%s", self._ledger.table())


def device_budget(config: ModelConfig, num_left: int) -> MemoryBudget:
    """An equal share of what --gpu-memory-utilization leaves of the GPU."""
    import torch

    from quire.engine.memory_ledger import MemoryBudget

    free, total = torch.cuda.mem_get_info()
    share = max(0, int(free - total * (1 - config.gpu_memory_utilization))) // num_left
    return MemoryBudget(total=share, kv_cache=share, kv_cache_at_most=share)


def tokenizer_of(config: ModelConfig) -> Tokenizer | None:
    """That of a model; None where there is none, since token ids can be served without: the text side says more."""
    from quire import hub
    from quire.text.tokenizer import Tokenizer

    try:
        folder = hub.resolve_tokenizer(config, hub.resolve(config.model, config))
        return Tokenizer.load(folder, config.tokenizer_mode, config.trust_remote_code)
    except CheckpointError:
        return None
