"""The models that requests may name, by name, alias and adapter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from quire.server.residency.registration import Registration
from quire.server.service.client_protocol import AdapterClientProtocol
from quire.server.service.models import ModelDirectory, ModelFilter
from quire.types.adapter_info import AdapterInfo


class Registrations:
    """Registrations in order. models: those that are loaded. adapters: of loaded models.

    keeps_all: a model that a new engine process could not load again stays registered, as models on demand do always.
    """

    def __init__(
        self,
        found: Iterable[Registration],
        models: ModelDirectory,
        adapters: AdapterClientProtocol,
        keeps_all: bool = False,
    ) -> None:
        self._models, self._adapters, self._keeps_all = models, adapters, keeps_all
        self._by_name = {one.name: one for one in found}
        models.unloaded = self._unloaded_names

    def __iter__(self) -> Iterator[Registration]:
        return iter([one for one in self._by_name.values() if not self._is_lost(one)])

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, one: Registration) -> None:
        self._by_name[one.name] = one

    def remove(self, one: Registration) -> None:
        self._by_name.pop(one.name, None)

    def has(self, one: Registration) -> bool:
        """Whether it is registered still."""
        return self._by_name.get(one.name) is one

    def get(self, name: str) -> Registration | None:
        """The model with this name or alias; None if there is none."""
        served = self._models.get(name) if name else None
        if served is not None:
            return self._by_name.get(served.info.name)
        return next((one for one in self if name in one.names), None)

    def of_adapter(self, name: str) -> Registration | None:
        """The model of the adapter with this name, loaded or kept for a model that is not loaded."""
        info = self._adapters.get(name)
        if info is not None:
            return self._by_name.get(info.model)
        return next((one for one in self for kept in one.adapters if kept.name == name), None)

    def is_served(self, one: Registration) -> bool:
        """Whether requests may use the model at once."""
        served = self._models.get(one.name)
        return one.state == "ready" and served is not None and served.info.name == one.name

    def kept_adapters(self) -> list[AdapterInfo]:
        """The adapters of models that are not loaded."""
        return [replace(info, tier=None, num_requests=0) for one in self.unloaded() for info in one.adapters]

    def unloaded(self) -> Sequence[Registration]:
        """The models that are not loaded, nor being unloaded."""
        return [one for one in self if not self.is_served(one) and self._models.find_leaving(one.name) is None]

    def _is_lost(self, one: Registration) -> bool:
        """Whether a new engine process could not load a model, which no request loads again."""
        is_gone = one.state == "ready" and not self.is_served(one) and self._models.find_leaving(one.name) is None
        return is_gone and not (self._keeps_all or one.is_on_demand)

    def default_for(self, *filters: ModelFilter) -> str:
        """`ModelDirectory.default_for` over all models, in the order of registration.

        What a model can do is known once it was loaded. If no such model is accepted, the default is a loaded one, else
        the first of all.
        """
        known = [one for one in self if one.info is not None]
        for accepts in filters:
            for one in known:
                if one.info is not None and accepts(one.info):
                    return one.name
        return self._models.default_for(*filters) or next((one.name for one in self), "")

    def _unloaded_names(self) -> list[str]:
        return [name for one in self.unloaded() for name in one.names]
