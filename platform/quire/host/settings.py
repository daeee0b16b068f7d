"""What the host is told when it starts, besides its models. It knows no client."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.adapter_info import AdapterInfo

IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What a host ignores. They are blocked in it from its first moment, until it has said so."""


@dataclass(frozen=True, kw_only=True)
class HostSettings:
    """What every incarnation of the host is told, and how patient its clients are.

    plugins, options, enable_lora, plugin_max_faults: as for `quire.registry.load`. adapters: to be loaded at the start.
    wait_ready_s: how long a request waits for a host that is being restarted. engine_timeout_s: how long a host may
    finish no step while it has work. module: what runs in the host process.
    """

    plugins: Sequence[str] | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    enable_lora: bool = False
    adapters: Sequence[AdapterInfo] = ()
    log_level: str = "info"
    max_restarts: int = 5
    plugin_max_faults: int = 100
    wait_ready_s: float = 15.0
    engine_timeout_s: float = 300.0
    module: str = "quire.host.process"
