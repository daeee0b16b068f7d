"""Adapter runtimes (one per PEFT type), and where plugins find adapters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from quire.records.context import Context

if TYPE_CHECKING:
    from torch import Tensor

    from quire.types import Plan


AdapterUses = Sequence[Sequence[tuple[int, float]]]
"""Per chunk (or row): a pair (slot, weight) for each of its adapters, ordered by slot; () = the base model alone."""


@dataclass(frozen=True, kw_only=True)
class AdapterMetadata:
    """Facts about an adapter that was loaded.

    num_bytes: its size in host memory. rank: the largest of its ranks, 0 for types without a rank.
    targets: the modules it changes, by the names in its own files, each once: "q_proj". in_tower: whether it changes
    the tower of the model too. virtual_tokens: positions that it takes before the prompt of a request. Their tokens
    reach the deltas as ids 0, from which a delta on the embedding table makes rows. has_virtual_kv: they are not
    computed, because the adapter brings their keys and values (`VirtualKvImpl.store_virtual`).
    """

    num_bytes: int
    rank: int = 0
    targets: tuple[str, ...] = ()
    in_tower: bool = False
    virtual_tokens: int = 0
    has_virtual_kv: bool = False


class AdapterRuntimeImpl(Protocol):
    """Runs adapters of one kind on one model. It has `Context.max_slots` slots on the device.

    `load`, `describe` and `release` run concurrently with everything else, and `load` possibly in several threads at
    once. One thread calls the other methods, between steps.
    """

    def attach(self, model: Any) -> None:
        """Put deltas on the model's projections and allocate the slots.

        Called once, after the weights are loaded and before the memory for pages is measured.
        """
        ...

    def load(self, name: str, path: Path) -> Any:
        """Read and check an adapter and do all costly preparation; raise `BadRequest` with the reason if it is invalid.

        Runs in a worker thread. Quire may call it again for an adapter that it released to free memory.
        """
        ...

    def describe(self, adapter: Any) -> AdapterMetadata:
        """Facts about what `load` returned."""
        ...

    def acquire_slot(self, adapter: Any) -> int | None:
        """A slot on the device, 0 … max_slots - 1, which the adapter keeps until `release_slot`.

        None when all slots are in use, or while the adapter is still on its way to the device. Must be quick, since a
        step waits for it. An adapter whose weights are still in a slot gets that slot again.
        """
        ...

    def release_slot(self, adapter: Any) -> None:
        """No running request needs the slot: another adapter may take it. Until then the weights may stay."""
        ...

    def release(self, adapter: Any) -> None:
        """Free the adapter: it was unloaded, or evicted from host memory.

        No request uses it, and `release_slot` was called before. A step of other requests may be running, so memory
        that a slot still refers to must live until that step ends.
        """
        ...

    def bind_step(self, plan: Plan, uses: AdapterUses) -> Any:
        """What `ForwardBatch.adapters` carries in the next step; `uses[i]` belongs to the tokens of chunk i.

        Not called for steps in which no chunk uses an adapter of this runtime.
        """
        ...

    def bind_logits(self, uses: AdapterUses) -> Any | None:
        """The argument `adapters` of `DecoderModel.logits`; `uses[i]` belongs to row i of the hidden states.

        None if none of these adapters changes anything after the hidden states. Called after `bind_step` of the same
        step, possibly several times with different rows.
        """
        ...

    def bind_tower(self, uses: AdapterUses, counts: Sequence[int]) -> Any | None:
        """What a stage of the model's tower carries; item i has counts[i] tokens and the adapters `uses[i]`.

        Called only if an adapter with `AdapterMetadata.in_tower` is among them, and before `bind_step`.
        """
        ...


class VirtualKvImpl(AdapterRuntimeImpl, Protocol):
    """A runtime with adapters that bring keys and values (`AdapterMetadata.has_virtual_kv`)."""

    def store_virtual(self, adapter: Any, kv: Any, slot_mapping: Tensor) -> None:
        """Store keys and values of an adapter's virtual tokens in the `quire_models.KVCache` (op `write_kv`).

        slot_mapping: int64 [virtual_tokens], as in `ForwardBatch`. Called before the first step of a sequence whose
        pages do not have them.
        """
        ...


@dataclass(frozen=True)
class AdapterRuntime:
    """A kind of adapter that can run beside the base weights.

    peft_types: values of `peft_type` in adapter_config.json that it runs.
    """

    name: str
    peft_types: frozenset[str]
    build: Callable[[Context], AdapterRuntimeImpl]


@dataclass(frozen=True)
class AdapterSource:
    """The folder of an adapter, and a revision that changes whenever its files change."""

    path: Path
    revision: str
