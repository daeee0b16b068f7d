"""What the host is told when it starts, besides its models. It knows no client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.adapter_info import AdapterInfo


@dataclass(frozen=True, kw_only=True)
class HostSettings:
    """What every incarnation of the host is told, and how patient its clients are.

    plugins, options, enable_lora, plugin_max_faults: as for `quire.registry.load`. adapters: to be loaded at the start.
    wait_ready_s: how long a request waits for a host that is being restarted. module: what runs in the host process.
    """

    plugins: Sequence[str] | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    enable_lora: bool = False
    adapters: Sequence[AdapterInfo] = ()
    log_level: str = "info"
    max_restarts: int = 5
    plugin_max_faults: int = 100
    wait_ready_s: float = 15.0
    module: str = "quire.host.process"
