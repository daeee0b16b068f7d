"""The account of memory: what models take, what is on its way, and who may leave."""

from __future__ import annotations

import math
from collections.abc import Callable

from quire.server.residency.memory_meter import MemoryMeter
from quire.server.residency.policy import Resident, Wanted
from quire.server.residency.registration import Registration
from quire.server.residency.registrations import Registrations
from quire.server.service.client_protocol import AdapterClientProtocol
from quire.settings.residency_config import ON_DEMAND


class Room:
    """known_limit: bytes for models that the engine process has computed. incoming: bytes of models that clients load.

    If there is a budget, models that were loaded at the start may be unloaded for others, too.
    """

    def __init__(
        self,
        registrations: Registrations,
        adapters: AdapterClientProtocol,
        meter: MemoryMeter,
        known_limit: Callable[[], int],
    ) -> None:
        self._registrations, self._adapters, self._meter = registrations, adapters, meter
        self._known_limit = known_limit
        self.incoming: dict[str, int] = {}

    @property
    def has_budget(self) -> bool:
        return self._meter.budget is not None

    def bytes_of(self, one: Registration) -> int:
        """What a model takes when it is loaded, with the adapters that CPU memory holds."""
        adapters = [*one.adapters, *(info for info in self._adapters.all() if info.model == one.name)]
        most = one.config.max_cpu_loras or max(32, one.config.max_loras)
        of_adapters = sum(sorted((info.num_bytes for info in adapters), reverse=True)[:most])
        return one.num_bytes(self._known_limit() or math.inf, len(self._registrations)) + of_adapters

    def residents(self) -> list[Resident]:
        """The models in memory, and those that come or go."""
        found = [
            one.resident(self.bytes_of(one), moves=self.has_budget)
            for one in self._registrations
            if one.state in ("loading", "unloading") or self._registrations.is_served(one)
        ]
        arriving = [Resident(name=name, num_bytes=size, is_busy=True) for name, size in self.incoming.items()]
        return found + arriving

    def wanted(self) -> list[Wanted]:
        """The models that requests wait for."""
        limit, known = self.limit(), self._known_limit() or math.inf
        found = []
        for one in self._registrations:
            if one.waiters and one.state == "unloaded":
                size = self.bytes_of(one)
                while_loading = min(size + one.size.largest_tensor, limit)  # a tensor is read and packed at once
                found.append(
                    Wanted(name=one.name, num_bytes=max(size, int(min(while_loading, known))), since=one.since)
                )
        return found

    def limit(self) -> float:
        """Bytes that all models together may take now."""
        used = sum(one.num_bytes for one in self.residents())
        return self._meter.limit(self._known_limit(), used)

    def describe(self) -> dict[str, float]:
        """Bytes by kind: what models take by the account, what they may take, the budget, and what was measured."""
        known = self._known_limit()
        found: dict[str, float] = {"models": sum(one.num_bytes for one in self.residents())}
        if known:
            found["limit"] = known
        if self._meter.budget is not None:
            found |= {"budget": self._meter.budget, "measured": self._meter.measure()}
        return found

    @property
    def comes_and_goes(self) -> bool:
        """Whether any model may be unloaded by itself."""
        return self.has_budget or any(
            one.config.load == ON_DEMAND or one.config.keep_alive >= 0 for one in self._registrations
        )
