"""Maps the sequences of a step to the adapter slots that they use, and binds the attached runtimes to them.

The slots of a sequence are computed once, when it starts; each step only looks them up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from quire.engine.adapters.attached_runtimes import AttachedRuntime, AttachedRuntimes
from quire.engine.adapters.revision import AdapterRevision
from quire.errors import PluginFailed, QuireError
from quire.records import AdapterUses
from quire.types import AdapterRef, Chunk, NewSeq, Plan, WeightedAdapter
from quire_models import KVCache

SlotUses = tuple[tuple[int, float], ...]
"""(slot, weight) of each adapter, in order of slots."""

FoundAdapters = tuple[Sequence[tuple[WeightedAdapter, AdapterRevision]], Mapping[AttachedRuntime, SlotUses]]
"""The adapters of a sequence, and their slots by runtime."""

Failures = dict[int, str]
"""Error message by seq_id."""


class AdapterMapping:
    """The adapter slots of all sequences in the runner. revisions: those that new sequences may refer to.

    slots: of the sequences that use adapters; while it is empty, there is nothing to bind. to_store: by sequence that
    begins, the adapter whose keys and values of virtual tokens it needs.
    """

    def __init__(self, runtimes: AttachedRuntimes, revisions: Mapping[AdapterRef, AdapterRevision]) -> None:
        self._runtimes, self._revisions = runtimes, revisions
        self.slots: dict[int, Mapping[AttachedRuntime, SlotUses]] = {}
        self._found: dict[int, FoundAdapters] = {}
        self._in_tower: dict[int, tuple[WeightedAdapter, ...]] = {}
        self.to_store: dict[int, AdapterRevision] = {}

    def start(self, start: NewSeq) -> None:
        """Add a sequence, with the adapters that were found for it."""
        if start.seq_id not in self._found:
            self.find(start)
        adapters, self.slots[start.seq_id] = self._found.pop(start.seq_id)
        if in_tower := tuple(use for use, adapter in adapters if adapter.metadata and adapter.metadata.in_tower):
            self._in_tower[start.seq_id] = in_tower
        for _, adapter in adapters if start.num_virtual else ():
            if adapter.metadata and adapter.metadata.has_virtual_kv:
                self.to_store[start.seq_id] = adapter

    def find(self, start: NewSeq) -> None:
        """Find the adapters of a sequence that will start. They have slots, and keep them until the request ends."""
        uses: dict[AttachedRuntime, SlotUses] = {}
        found = [(use, self._revisions[use.ref]) for use in start.adapters]
        for use, adapter in found:
            assert adapter.runtime is not None, "it was read"
            assert adapter.holding_requests, "it has a slot"
            # in the request's order: sums are rounded after each adapter, and slots depend on other requests
            uses[adapter.runtime] = (*uses.get(adapter.runtime, ()), (adapter.slot, use.weight))
        self._found[start.seq_id] = found, uses

    def end(self, seq_id: int) -> None:
        """Drop a sequence, if it uses adapters."""
        self.slots.pop(seq_id, None)
        self._in_tower.pop(seq_id, None)
        self.to_store.pop(seq_id, None)

    @property
    def captured(self) -> tuple[int, Callable[[Any], Any]] | None:
        """How the runtimes work in captured steps, see `AttachedRuntimes.captured`."""
        return self._runtimes.captured()

    def clear(self) -> None:
        self._found.clear()
        self.slots.clear()
        self._in_tower.clear()
        self.to_store.clear()

    def store_virtual(self, chunks: Sequence[Chunk], kv: KVCache) -> Failures:
        """Let runtimes store keys and values of virtual tokens for sequences that begin; returns their failures.

        A sequence whose first chunk is further on found them in the prefix cache or in host memory.
        """
        failures: Failures = {}
        for chunk in chunks:
            adapter = self.to_store.pop(chunk.seq_id, None)
            if adapter is None or adapter.metadata is None or chunk.start > adapter.metadata.virtual_tokens:
                continue
            assert adapter.runtime is not None, "it was read"
            runtime: Any = adapter.runtime.built  # a VirtualKvImpl
            positions = torch.arange(adapter.metadata.virtual_tokens)
            pages = torch.tensor(chunk.new_pages, dtype=torch.int64)[positions // kv.page_size]
            slot_mapping = (pages * kv.page_size + positions % kv.page_size).to(kv.k[0].device)
            try:
                adapter.runtime.call(runtime.store_virtual, adapter.loaded, kv, slot_mapping)
            except QuireError as error:
                failures[chunk.seq_id] = error.message
        return failures

    def bind(self, plan: Plan) -> tuple[Any, Failures]:
        """`ForwardBatch.adapters` for these chunks, and the runtimes' failures."""
        seq_ids = [chunk.seq_id for chunk in plan.chunks]
        return self._bind(seq_ids, lambda runtime, uses: runtime.call(runtime.built.bind_step, plan, uses))

    def bind_logits(self, seq_ids: Sequence[int]) -> tuple[Any, Failures]:
        """The adapters argument of the model's head for one hidden state of each of these seqs, and the failures."""
        return self._bind(seq_ids, lambda runtime, uses: runtime.call(runtime.built.bind_logits, uses))

    def in_tower(self, seq_id: int) -> tuple[WeightedAdapter, ...]:
        """The adapters of a seq that change the model's tower."""
        return self._in_tower.get(seq_id, ())

    def bind_tower(self, seq_ids: Sequence[int], counts: Sequence[int]) -> Any:
        """The adapters argument of a stage of the tower, in which the item of seq_ids[i] has counts[i] tokens.

        Raises PluginFailed.
        """
        if not any(seq_id in self._in_tower for seq_id in seq_ids):
            return None
        bound, failures = self._bind(
            seq_ids, lambda runtime, uses: runtime.call(runtime.built.bind_tower, uses, counts)
        )
        for message in failures.values():
            raise PluginFailed(message)
        return bound

    def _bind(
        self, seq_ids: Sequence[int], bind: Callable[[AttachedRuntime, AdapterUses], Any]
    ) -> tuple[Any, Failures]:
        failures: Failures = {}
        if not self.slots:
            return None, failures
        found = [self.slots.get(seq_id) for seq_id in seq_ids]
        bound: dict[int, Any] = {}
        for runtime in dict.fromkeys(runtime for each in found if each is not None for runtime in each):
            uses = [() if each is None else each.get(runtime, ()) for each in found]
            try:
                made = bind(runtime, uses)
            except QuireError as error:
                failures |= {seq_id: error.message for seq_id, own in zip(seq_ids, uses, strict=True) if own}
                continue
            if made is not None:
                bound[runtime.runtime_index] = made
        return self._runtimes.merge(bound), failures
