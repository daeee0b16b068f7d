"""The runtime: reads adapters, packs them, and gives them seats on the projections, tables and experts of one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from quire.records import AdapterFacts, AdapterUses, Context
from quire.types import Plan
from quire_adapters import targets
from quire_adapters.chairs import Chairs
from quire_adapters.changes import Changes, may_be_whole
from quire_adapters.deltas import ExpertsDelta, TableDelta, WholeDelta
from quire_adapters.reading import read
from quire_adapters.sites import Sites
from quire_kernels.low_rank import LastSegments, Seated, Segments, pack_all
from quire_models.blocks import DecoderModel


class Places(Protocol):
    """The seats of one module."""

    def put(self, seat: int, share: Any) -> None:
        """A share takes a seat."""
        ...

    def clear(self, seat: int) -> None:
        """The seat changes nothing any more."""
        ...


@dataclass(slots=True, eq=False)
class Adapter:
    """One that was read. shares: what it puts where when it takes a seat; nothing once it was released."""

    shares: list[tuple[Places, Any]]
    facts: AdapterFacts
    after_hidden: bool


@dataclass(frozen=True, eq=False)
class _Attached:
    """A model with seats on its modules, by their paths."""

    model: DecoderModel
    sites: Sites
    seated: Mapping[str, Seated]
    tables: Mapping[str, TableDelta]
    experts: Mapping[str, ExpertsDelta]
    wholes: Mapping[str, WholeDelta]

    @classmethod
    def to(cls, model: DecoderModel, sites: Sites, seats: int) -> _Attached:
        """Put a delta on everything that can be changed."""
        seated = sites.seated(model.ops.low_rank, seats, model.dtype, model.device)
        tables = {path: TableDelta(model.device) for path in sites.tables}
        experts = {
            path: ExpertsDelta(site.experts, model.ops.gated_act, model.device) for path, site in sites.mixtures.items()
        }
        wholes = {path: WholeDelta(seats) for path, seats in seated.items() if may_be_whole(path)}
        deltas: dict[str, Any] = {**seated, **tables, **experts, **wholes}
        for path, delta in deltas.items():
            model.get_submodule(path).delta = delta
        return cls(model, sites, seated, tables, experts, wholes)

    def adapter(self, changes: Changes) -> Adapter:
        """An adapter, packed."""
        pairs = [(self.seated[path], deltas) for path, deltas in changes.deltas.items()]
        packed, size = pack_all(pairs)
        shares: list[tuple[Places, Any]] = list(zip((seated for seated, _ in pairs), packed, strict=True))
        shares += [(self.tables[path], change) for path, change in changes.tables.items()]
        shares += [(self.experts[path], change) for path, change in changes.experts.items()]
        size += sum(change.num_bytes for change in changes.tables.values())
        size += sum(change.num_bytes for change in changes.experts.values())
        for path, given in changes.wholes.items():
            weight = given.to(self.model.device, self.model.dtype, copy=True)
            shares.append((self.wholes[path], self.sites.projections[path].bound(weight)))
            size += weight.numel() * weight.element_size()
        facts = AdapterFacts(
            num_bytes=size, rank=changes.rank, targets=tuple(sorted(changes.targets)), in_tower=changes.in_tower
        )
        return Adapter(shares, facts, changes.after_hidden)


class Lora:
    """See `quire.records.RunsAdapters`."""

    def __init__(self, context: Context) -> None:
        self._names, self._max_rank, self._apart = context.names, context.max_rank, context.apart
        self._apart.prepare(targets.read)
        self._chairs = Chairs[Adapter](context.max_seats, self._sit_down, self._stand_up)
        self._after_hidden: set[int] = set()
        self._segments = LastSegments()

    def attach(self, model: DecoderModel) -> None:
        """Make seats on every module that can be changed."""
        self._attached = _Attached.to(model, Sites(model, self._names), len(self._chairs.taken))

    def load(self, name: str, path: Path) -> Adapter:
        """Read, check and pack an adapter. Raises BadRequest."""
        attached = self._attached
        return attached.adapter(read(path, attached.sites, self._max_rank, attached.model.dtype, self._apart))

    def describe(self, adapter: Adapter) -> AdapterFacts:
        """What it is."""
        return adapter.facts

    @property
    def seats(self) -> tuple[Adapter | None, ...]:
        """Who has which seat, whether in use or not."""
        return self._chairs.taken

    def seat(self, adapter: Adapter) -> int | None:
        """See `Chairs`."""
        return self._chairs.seat(adapter)

    def unseat(self, adapter: Adapter) -> None:
        """See `Chairs`."""
        self._chairs.unseat(adapter)

    def release(self, adapter: Adapter) -> None:
        """Free its memory. No token of a step that is under way uses its seat, so nothing of it is being read."""
        self._chairs.release(adapter)
        adapter.shares.clear()

    def _sit_down(self, adapter: Adapter, seat: int) -> None:
        for place, share in adapter.shares:
            place.put(seat, share)
        if adapter.after_hidden:
            self._after_hidden.add(seat)

    def _stand_up(self, adapter: Adapter, seat: int) -> None:
        for place, _ in adapter.shares:
            place.clear(seat)
        self._after_hidden.discard(seat)

    def bind(self, plan: Plan, uses: AdapterUses) -> Segments:
        """The tokens of each seat."""
        return self._segments.of(uses, [len(chunk.token_ids) for chunk in plan.chunks], self._attached.model.device)

    def bind_rows(self, uses: AdapterUses) -> Segments | None:
        """The rows of each seat; None if no adapter among them changes a head."""
        if not any(seat in self._after_hidden for row in uses for seat, _ in row):
            return None
        return Segments.of(uses, [1] * len(uses), self._attached.model.device)

    def bind_counts(self, uses: AdapterUses, counts: Sequence[int]) -> Segments:
        """The tower's tokens of each seat."""
        return Segments.of(uses, counts, self._attached.model.device)
