"""The LoRA runtime: reads adapters, packs them, and gives them slots on the modules of one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from quire.records import AdapterMetadata, AdapterUses, Context
from quire.types import Plan
from quire_adapters.base_values import BaseValues
from quire_adapters.deltas import EmbeddingDelta, ExpertsDelta, ReplacedWeightDelta
from quire_adapters.divided import AdapterCut, DividedValues
from quire_adapters.peft import targets as peft_targets
from quire_adapters.peft.loader import read
from quire_adapters.slot_allocator import SlotAllocator
from quire_adapters.target_modules import TargetModules
from quire_adapters.weights import AdapterWeights, can_be_replaced
from quire_kernels.low_rank import AdapterSlots, Segments, SegmentsCache, pack_all
from quire_models.modules.blocks import DecoderModel


class SlotTarget(Protocol):
    """The adapter slots of one module."""

    def put(self, slot: int, packed: Any) -> None:
        """Load an adapter's packed weights for this module into a slot."""
        ...

    def clear(self, slot: int) -> None:
        """Empty a slot, so that it changes nothing."""
        ...


@dataclass(slots=True, eq=False)
class LoadedAdapter:
    """An adapter in host memory. packed: its weights for each module it changes; empty after it was released.

    after_hidden: it changes modules after the hidden states. capturable: the op `low_rank` is all that it needs.
    """

    packed: list[tuple[SlotTarget, Any]]
    metadata: AdapterMetadata
    after_hidden: bool
    capturable: bool


@dataclass(frozen=True, eq=False)
class AttachedModel:
    """A model with adapter slots on its modules. The mappings are by module path."""

    model: DecoderModel
    targets: TargetModules
    adapter_slots: Mapping[str, AdapterSlots]
    tables: Mapping[str, EmbeddingDelta]
    experts: Mapping[str, ExpertsDelta]
    replaced: Mapping[str, ReplacedWeightDelta]

    @classmethod
    def attach(cls, model: DecoderModel, targets: TargetModules, num_slots: int) -> AttachedModel:
        """Put a delta on every module that an adapter can change."""
        adapter_slots = targets.adapter_slots(model.ops.low_rank, num_slots, model.dtype, model.device)
        tables = {path: EmbeddingDelta(model.device) for path in targets.tables}
        experts = {path: ExpertsDelta(target.experts, model.device) for path, target in targets.experts.items()}
        replaced = {path: ReplacedWeightDelta(slots) for path, slots in adapter_slots.items() if can_be_replaced(path)}
        deltas: dict[str, Any] = {**adapter_slots, **tables, **experts, **replaced}
        for path, delta in deltas.items():
            model.get_submodule(path).delta = delta
        return cls(model, targets, adapter_slots, tables, experts, replaced)

    def pack(self, weights: AdapterWeights) -> LoadedAdapter:
        """Pack an adapter's weights for the ops."""
        pairs = [(self.adapter_slots[path], updates) for path, updates in weights.linear.items()]
        low_rank, size = pack_all(pairs)
        packed: list[tuple[SlotTarget, Any]] = list(
            zip((adapter_slots for adapter_slots, _ in pairs), low_rank, strict=True)
        )
        packed += [(self.tables[path], update) for path, update in weights.tables.items()]
        packed += [(self.experts[path], update) for path, update in weights.experts.items()]
        size += sum(update.num_bytes for update in weights.tables.values())
        size += sum(update.num_bytes for update in weights.experts.values())
        for path, given in weights.replaced.items():
            weight = given.to(self.model.device, self.model.dtype, copy=True)
            packed.append((self.replaced[path], self.targets.projections[path].bind(weight)))
            size += weight.numel() * weight.element_size()
        metadata = AdapterMetadata(
            num_bytes=size, rank=weights.rank, targets=tuple(sorted(weights.targets)), in_tower=weights.in_tower
        )
        others = weights.after_hidden or weights.tables or weights.experts or weights.replaced
        absorbed = any(self.targets.projections[path].is_absorbed for path in weights.linear)
        changes = [update for updates in weights.linear.values() for update in updates if update is not None]
        fits = all(update.a is None or len(update.a) <= weights.rank for update in changes)
        return LoadedAdapter(packed, metadata, weights.after_hidden, capturable=fits and not others and not absorbed)


class LoraRuntime:
    """The adapter runtime of `peft_type` LORA, a `quire.records.AdapterRuntimeImpl`.

    captured_rank: it can run in captured steps, with adapters of up to this rank.
    """

    def __init__(self, context: Context) -> None:
        self._names, self._max_rank, self._in_subprocess = context.names, context.max_rank, context.in_subprocess
        self._in_subprocess.prepare(peft_targets.read)
        self._allocator = SlotAllocator[LoadedAdapter](context.max_slots, self._load_slot, self._clear_slot)
        self.captured_rank = context.max_rank
        self._after_hidden, self._not_capturable = set[int](), set[int]()
        self._segments = SegmentsCache()

    def attach(self, model: DecoderModel) -> None:
        num_slots = len(self._allocator.occupants)
        self._attached = AttachedModel.attach(model, TargetModules(model, self._names), num_slots)
        shard = getattr(model, "shard", None)
        own = self._attached.targets
        self._cut = None if shard is None else AdapterCut(shard)
        self._read_targets = own if shard is None else TargetModules(shard.whole, self._names)
        self._base = BaseValues() if shard is None else DividedValues(shard, own)

    def load(self, name: str, path: Path) -> LoadedAdapter:
        """Read, check and pack an adapter. Raises BadRequest."""
        attached, targets = self._attached, self._read_targets
        found = read(path, targets, self._max_rank, attached.model.dtype, self._in_subprocess, self._base)
        return attached.pack(found if self._cut is None else self._cut.weights(found, targets.slices))

    def describe(self, adapter: LoadedAdapter) -> AdapterMetadata:
        return adapter.metadata

    @property
    def slots(self) -> tuple[LoadedAdapter | None, ...]:
        """The adapter of each slot, whether in use or not."""
        return self._allocator.occupants

    def acquire_slot(self, adapter: LoadedAdapter) -> int | None:
        return self._allocator.acquire_slot(adapter)

    def release_slot(self, adapter: LoadedAdapter) -> None:
        self._allocator.release_slot(adapter)

    def release(self, adapter: LoadedAdapter) -> None:
        """Free its memory. No token of a step in progress uses its slot, so its weights are not being read."""
        self._allocator.release(adapter)
        adapter.packed.clear()

    def _load_slot(self, adapter: LoadedAdapter, slot: int) -> None:
        for target, packed in adapter.packed:
            target.put(slot, packed)
        if adapter.after_hidden:
            self._after_hidden.add(slot)
        if not adapter.capturable:
            self._not_capturable.add(slot)

    def _clear_slot(self, adapter: LoadedAdapter, slot: int) -> None:
        for target, _ in adapter.packed:
            target.clear(slot)
        self._after_hidden.discard(slot)
        self._not_capturable.discard(slot)

    def bind_step(self, plan: Plan, uses: AdapterUses) -> Segments:
        """The tokens of each slot."""
        others = self._not_capturable
        capturable = not others or others.isdisjoint(slot for row in uses for slot, _ in row)
        lens = [len(chunk.token_ids) for chunk in plan.chunks]
        return self._segments.get(uses, lens, self._attached.model.device, capturable)

    def bind_logits(self, uses: AdapterUses) -> Segments | None:
        """The rows of each slot; None if no adapter among them changes a head."""
        if not any(slot in self._after_hidden for row in uses for slot, _ in row):
            return None
        return Segments.from_uses(uses, [1] * len(uses), self._attached.model.device)

    def bind_tower(self, uses: AdapterUses, counts: Sequence[int]) -> Segments:
        """The tower's tokens of each slot."""
        return Segments.from_uses(uses, counts, self._attached.model.device)
