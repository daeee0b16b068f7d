"""The account of memory: what models take, loaded or being loaded, and which may be unloaded."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from heapq import nlargest

from quire.server.residency.memory_meter import MemoryMeter
from quire.server.residency.policy import Resident, Wanted
from quire.server.residency.registration import Registration
from quire.server.residency.registrations import Registrations
from quire.server.service.client_protocol import AdapterClientProtocol, SleepProtocol
from quire.settings.model_groups.residency_config import ON_DEMAND


class Room:
    """known_limit: bytes for models that the engine process has computed. incoming: bytes of models that clients load.

    in_flight: names of models that jobs run on, also jobs that outlive their requests. sleep_of: how a model sleeps. If
    there is a budget, models that were loaded at the start may be unloaded for others, too.
    """

    def __init__(
        self,
        registrations: Registrations,
        adapters: AdapterClientProtocol,
        meter: MemoryMeter,
        known_limit: Callable[[], int],
        in_flight: Callable[[], Set[str]] = frozenset,
        sleep_of: Callable[[str], SleepProtocol | None] = lambda name: None,
    ) -> None:
        self._registrations, self._adapters, self.meter = registrations, adapters, meter
        self._known_limit, self.in_flight, self._sleep_of = known_limit, in_flight, sleep_of
        self.incoming: dict[str, int] = {}

    @property
    def has_budget(self) -> bool:
        return self.meter.budget is not None

    def bytes_of(self, one: Registration) -> int:
        """What a model takes when it is loaded, less if it sleeps, with the adapters that CPU memory holds."""
        return self._bytes_of(one, self._bytes_of_adapters())

    def bytes_awake(self, one: Registration) -> int:
        """`bytes_of` a model that does not sleep."""
        return self._of_model(one) + self._of_adapters(one, self._bytes_of_adapters())

    def _bytes_of(self, one: Registration, of_adapters: Mapping[str, Sequence[int]]) -> int:
        sleep = self._sleep_of(one.name)
        asleep = one.num_bytes_asleep if sleep is not None and sleep.has_weights else 0
        return (self._of_model(one) if sleep is None else asleep) + self._of_adapters(one, of_adapters)

    def _of_model(self, one: Registration) -> int:
        return one.num_bytes(self._known_limit() or math.inf, len(self._registrations))

    def _of_adapters(self, one: Registration, of_adapters: Mapping[str, Sequence[int]]) -> int:
        sizes = [*(info.num_bytes for info in one.adapters), *of_adapters.get(one.name, ())]
        return sum(nlargest(one.config.max_cpu_loras or max(32, one.config.max_loras), sizes))

    def _bytes_of_adapters(self) -> Mapping[str, Sequence[int]]:
        """The sizes of all loaded adapters, by model."""
        found: dict[str, list[int]] = defaultdict(list)
        for info in self._adapters.all():
            found[info.model].append(info.num_bytes)
        return found

    def residents(self) -> list[Resident]:
        """The models in memory, and those that are being loaded or unloaded."""
        of_adapters, in_flight = self._bytes_of_adapters(), self.in_flight()
        found = [
            one.resident(self._bytes_of(one, of_adapters), moves=self.has_budget, is_busy=one.name in in_flight)
            for one in self._registrations
            if one.state in ("loading", "unloading") or self._registrations.is_served(one)
        ]
        arriving = [Resident(name=name, num_bytes=size, is_busy=True) for name, size in self.incoming.items()]
        return found + arriving

    def wanted(self) -> list[Wanted]:
        """The models that requests wait for."""
        asked_for = [one for one in self._registrations if one.waiters and one.state == "unloaded"]
        if not asked_for:
            return []
        limit, known = self.limit(), self._known_limit() or math.inf
        found = []
        for one in asked_for:
            size = self.bytes_of(one)
            while_loading = min(size + one.size.largest_tensor, limit)  # a tensor is read and packed at once
            found.append(Wanted(name=one.name, num_bytes=max(size, int(min(while_loading, known))), since=one.since))
        return found

    def limit(self) -> float:
        """Bytes that all models together may take now."""
        used = sum(one.num_bytes for one in self.residents())
        return self.meter.limit(self._known_limit(), used)

    def describe(self) -> dict[str, float]:
        """Bytes by kind: what models take by the account, what they may take, the budget, and what was measured."""
        known = self._known_limit()
        found: dict[str, float] = {"models": sum(one.num_bytes for one in self.residents())}
        if known:
            found["limit"] = known
        if self.meter.budget is not None:
            found |= {"budget": self.meter.budget, "measured": self.meter.measured()}
        return found

    @property
    def comes_and_goes(self) -> bool:
        """Whether any model may be unloaded by itself."""
        return self.has_budget or any(
            one.config.load == ON_DEMAND or one.config.keep_alive >= 0 for one in self._registrations
        )
