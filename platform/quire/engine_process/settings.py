"""Settings of the engine process, apart from the models, and what its client is made with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.engine_process.replicas.share import ReplicaShare
from quire.engine_process.watchdog import FROZEN_AFTER_S
from quire.engine_process.wire.memory_plan import MemoryPlan
from quire.engine_process.wire.process_source import ProcessSource
from quire.engine_process.wire.spawn import MODULE
from quire.types.adapter_info import AdapterInfo

GC_THRESHOLDS = (20_000, 50, 50)
"""For `gc.set_threshold`, in both processes: collect rarely. Reference counts free nearly everything, and collections
take a fifth of the time of imports."""


@dataclass(frozen=True, kw_only=True)
class EngineProcessSettings:
    """Every engine process is started with the same settings.

    plugins, options, enable_lora, plugin_max_faults: arguments of `quire.hooks.registry.load`. adapters: loaded at the
    first start. wait_ready_s: how long a request waits for an engine process that is being restarted. engine_timeout_s:
    an engine process with work that finishes no step for so long is killed. frozen_after_s: one that is silent for so
    long and uses no CPU counts as frozen. kill_frozen: it is killed. share: what it may take of the machine, None =
    all. kv_events: the object of --kv-events-config. memory: what all models together may take. module: what the engine
    process runs.
    processes: where engine processes come from, None = a new one each time.
    """

    plugins: Sequence[str] | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    enable_lora: bool = False
    adapters: Sequence[AdapterInfo] = ()
    log_level: str = "info"
    log_format: str = "text"
    max_restarts: int = 5
    plugin_max_faults: int = 100
    wait_ready_s: float = 15.0
    engine_timeout_s: float = 300.0
    frozen_after_s: float = FROZEN_AFTER_S
    kill_frozen: bool = False
    share: ReplicaShare | None = None
    kv_events: Mapping[str, Any] = field(default_factory=dict)
    memory: MemoryPlan = field(default_factory=MemoryPlan)
    module: str = MODULE
    processes: ProcessSource | None = None


OnAdapterLoaded = Callable[[AdapterInfo], None]
"""Called with an adapter that the engine process has loaded because a client asked for it."""


@dataclass(frozen=True)
class ClientEvents:
    """Callbacks on the event loop. By default they do nothing.

    on_ready: an engine process has loaded everything. on_lost: one has ended, and its requests have failed.
    """

    on_ready: Callable[[], None] = lambda: None
    on_lost: Callable[[], None] = lambda: None
    on_adapter_loaded: OnAdapterLoaded = lambda info: None


NO_CALLBACKS = ClientEvents()
