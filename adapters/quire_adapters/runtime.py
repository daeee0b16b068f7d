"""The runtime: reads adapters, packs them, and gives them seats on the projections, tables and experts of one model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from quire.records import AdapterFacts, AdapterUses, Context
from quire.types import Plan
from quire_adapters.changes import Changes
from quire_adapters.deltas import ExpertsDelta, HeadDelta, TableDelta
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
    seat: int | None = None


@dataclass(frozen=True, eq=False)
class _Attached:
    """A model with seats on its modules, by their paths."""

    model: DecoderModel
    sites: Sites
    seated: Mapping[str, Seated]
    tables: Mapping[str, TableDelta]
    experts: Mapping[str, ExpertsDelta]
    head: HeadDelta

    @classmethod
    def to(cls, model: DecoderModel, sites: Sites, seats: int) -> _Attached:
        """Put a delta on everything that can be changed."""
        seated = sites.seated(model.ops.low_rank, seats, model.dtype, model.device)
        tables = {path: TableDelta(model.device) for path in sites.tables}
        experts = {
            path: ExpertsDelta(site.experts, model.ops.gated_act, model.device) for path, site in sites.mixtures.items()
        }
        head = HeadDelta(seated["head"])
        deltas: dict[str, Any] = {**seated, **tables, **experts, "head": head}
        for path, delta in deltas.items():
            model.get_submodule(path).delta = delta
        return cls(model, sites, seated, tables, experts, head)

    def adapter(self, changes: Changes) -> Adapter:
        """An adapter, packed."""
        pairs = [(self.seated[path], deltas) for path, deltas in changes.deltas.items()]
        packed, size = pack_all(pairs)
        shares: list[tuple[Places, Any]] = list(zip((seated for seated, _ in pairs), packed, strict=True))
        shares += [(self.tables[path], change) for path, change in changes.tables.items()]
        shares += [(self.experts[path], change) for path, change in changes.experts.items()]
        size += sum(change.num_bytes for change in changes.tables.values())
        size += sum(change.num_bytes for change in changes.experts.values())
        if changes.head is not None:
            weight = changes.head.to(self.model.device, self.model.dtype, copy=True)
            shares.append((self.head, self.model.head.bound(weight)))
            size += weight.numel() * weight.element_size()
        facts = AdapterFacts(num_bytes=size, rank=changes.rank, targets=tuple(sorted(changes.targets)))
        return Adapter(shares, facts, changes.after_hidden)


class Lora:
    """See `quire.records.RunsAdapters`. Who was let go keeps its seat until another needs one, longest unused first."""

    def __init__(self, context: Context) -> None:
        self._names, self._max_rank, self._num_seats = context.names, context.max_rank, context.max_seats
        self._lock = Lock()
        self._at: list[Adapter | None] = [None] * context.max_seats
        self._idle: OrderedDict[int, Adapter] = OrderedDict()  # seats that nobody holds, longest unused first
        self._after_hidden: set[int] = set()
        self._segments = LastSegments()

    def attach(self, model: DecoderModel) -> None:
        """Make seats on every module that can be changed."""
        self._attached = _Attached.to(model, Sites(model, self._names), self._num_seats)

    def load(self, name: str, path: Path) -> Adapter:
        """Read, check and pack an adapter. Raises BadRequest."""
        attached = self._attached
        return attached.adapter(read(path, attached.sites, self._max_rank, attached.model.dtype))

    def describe(self, adapter: Adapter) -> AdapterFacts:
        """What it is."""
        return adapter.facts

    @property
    def seats(self) -> tuple[Adapter | None, ...]:
        """Who has which seat, whether in use or not."""
        with self._lock:
            return tuple(self._at)

    def seat(self, adapter: Adapter) -> int | None:
        """The seat it still has, an empty one, or that of the adapter which was let go the longest ago; or None."""
        with self._lock:
            if adapter.seat is None:
                if None not in self._at and self._idle:
                    self._stand_up(next(iter(self._idle.values())))
                if None not in self._at:
                    return None
                self._sit_down(adapter, self._at.index(None))
            assert adapter.seat is not None
            self._idle.pop(adapter.seat, None)
            return adapter.seat

    def unseat(self, adapter: Adapter) -> None:
        """Others may have its seat now."""
        with self._lock:
            if adapter.seat is not None:
                self._idle[adapter.seat] = adapter

    def release(self, adapter: Adapter) -> None:
        """Free its memory. No token of a step that is under way uses its seat, so nothing of it is being read."""
        with self._lock:
            if adapter.seat is not None:
                self._stand_up(adapter)
            adapter.shares.clear()

    def _sit_down(self, adapter: Adapter, seat: int) -> None:
        self._at[seat], adapter.seat = adapter, seat
        for place, share in adapter.shares:
            place.put(seat, share)
        if adapter.after_hidden:
            self._after_hidden.add(seat)

    def _stand_up(self, adapter: Adapter) -> None:
        assert adapter.seat is not None
        seat, adapter.seat = adapter.seat, None
        self._at[seat] = None
        for place, _ in adapter.shares:
            place.clear(seat)
        self._idle.pop(seat, None)
        self._after_hidden.discard(seat)

    def bind(self, plan: Plan, uses: AdapterUses) -> Segments:
        """The tokens of each seat."""
        return self._segments.of(uses, [len(chunk.token_ids) for chunk in plan.chunks], self._attached.model.device)

    def bind_rows(self, uses: AdapterUses) -> Segments | None:
        """The rows of each seat; None if no adapter among them changes the head."""
        if not any(seat in self._after_hidden for row in uses for seat, _ in row):
            return None
        return Segments.of(uses, [1] * len(uses), self._attached.model.device)
