"""A runtime of IA³ adapters (arXiv 2205.05638) in PEFT's format: vectors that scale inputs or outputs of matrices.

    y = l ⊙ (W x + b)   for the `target_modules`, l [outputs]
    y = W (l ⊙ x) + b   for those of them that are `feedforward_modules` too, l [inputs]

Each projection has a row of scales per slot, ones where the adapter has none, so a batch can mix any adapters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.plugin import AdapterMetadata, AdapterRuntime, AdapterUses, BadRequest, Context, Plan, hookimpl

if TYPE_CHECKING:
    from torch import Tensor

    from quire.plugin import Projection

    Layer = tuple[Tensor, Tensor, Tensor]
    """Token indices, and for each of these tokens the slot and the weight of one of its adapters."""

PREFIX, SUFFIX = "base_model.model.", ".ia3_l"


@dataclass(frozen=True, eq=False)
class Adapter:
    """Scales by (Quire's name of the matrix, whether they scale its inputs)."""

    scales: Mapping[tuple[str, bool], Tensor]


class Scaling:
    """The delta of one projection: tables [slots, outputs] and [slots, inputs], the latter created when needed."""

    def __init__(self, projection: Projection, num_slots: int) -> None:
        self.projection = projection
        self.outputs = projection.weight.new_ones(num_slots, projection.outputs)
        self.inputs: Tensor | None = None

    def clear(self, slot: int) -> None:
        self.outputs[slot] = 1
        if self.inputs is not None:
            self.inputs[slot] = 1

    def write(self, slot: int, rows: slice, of_inputs: bool, scales: Tensor) -> None:
        """Set the scales of a slot, for all inputs or for some rows of the outputs."""
        if not of_inputs:
            self.outputs[slot, rows] = scales.to(self.outputs)
            return
        if self.inputs is None:
            self.inputs = self.projection.weight.new_ones(len(self.outputs), self.projection.inputs)
        self.inputs[slot] = scales.to(self.inputs)

    def __call__(self, y: Tensor, x: Tensor, adapters: list[Layer]) -> Tensor:
        """Scale the rows of tokens that have adapters; other rows stay unchanged, bit for bit.

        With weight w, a scale l becomes 1 + w (l - 1).
        """
        if self.inputs is not None:
            x = _scaled(x.clone(), self.inputs, adapters)
            tokens = adapters[0][0]  # every token that has adapters has a first one
            y[tokens] = self.projection.multiply(x[tokens])
        return _scaled(y, self.outputs, adapters)


def _scaled(values: Tensor, scales: Tensor, adapters: list[Layer]) -> Tensor:
    for tokens, slots, weights in adapters:
        values[tokens] *= 1 + weights[:, None].to(values) * (scales[slots] - 1)
    return values


class Ia3:
    """The runtime. A slot keeps its adapter until another adapter needs the slot."""

    def __init__(self, context: Context) -> None:
        self._names, self._device = context.names, context.device
        self._slots: list[Adapter | None] = [None] * context.max_slots
        self._held: set[Adapter] = set()
        self._matrices: dict[str, tuple[Scaling, slice]] = {}

    def attach(self, model: Any) -> None:
        """Put a `Scaling` on every projection of the blocks; fused matrices share one."""
        from quire_models.modules.projection import projections

        made: dict[Any, Scaling] = {}
        for path, (projection, rows) in projections(model).items():
            if path.startswith("blocks."):
                if projection not in made:
                    made[projection] = projection.delta = Scaling(projection, len(self._slots))
                self._matrices[path] = made[projection], rows or slice(None)

    def load(self, name: str, path: Path) -> Adapter:
        """Read a PEFT folder. Raises BadRequest if it does not fit this model."""
        from safetensors.torch import load_file

        try:
            config = json.loads((path / "adapter_config.json").read_text(encoding="utf-8"))
            tensors = load_file(path / "adapter_model.safetensors")
        except Exception as error:  # safetensors raises its own exceptions
            raise BadRequest(f"Adapter {name!r} cannot be read: {error}", "lora_path") from error
        reading = tuple(config.get("feedforward_modules") or ())
        scales = {}
        for key, tensor in tensors.items():
            module = key.removeprefix(PREFIX).removesuffix(SUFFIX)
            where = self._names.rename(module), module.endswith(reading)
            self._check(name, *where, tensor.numel())
            scales[where] = tensor.flatten()
        return Adapter(scales)

    def _check(self, name: str, matrix: str, of_inputs: bool, size: int) -> None:
        if matrix not in self._matrices:
            raise BadRequest(f"Adapter {name!r} changes {matrix}, which this model does not have.", "lora_path")
        scaling, rows = self._matrices[matrix]
        if of_inputs and rows != slice(None):
            raise BadRequest(
                f"Adapter {name!r} scales the inputs of {matrix}, which other matrices share.", "lora_path"
            )
        wanted = scaling.projection.inputs if of_inputs else scaling.outputs[0, rows].numel()
        if size != wanted:
            raise BadRequest(f"Adapter {name!r} has {size} scales for {matrix}, which takes {wanted}.", "lora_path")

    def describe(self, adapter: Adapter) -> AdapterMetadata:
        targets = sorted({matrix.rpartition(".")[2] for matrix, _ in adapter.scales})
        return AdapterMetadata(
            num_bytes=sum(vector.nbytes for vector in adapter.scales.values()), targets=tuple(targets)
        )

    def acquire_slot(self, adapter: Adapter) -> int | None:
        """The slot it still has, a free one, or one whose adapter is not in use; None if there is none."""
        if adapter not in self._slots:
            free = [i for i, other in enumerate(self._slots) if other is None or other not in self._held]
            if not free:
                return None
            for scaling, _ in self._matrices.values():
                scaling.clear(free[0])
            for (matrix, of_inputs), scales in adapter.scales.items():
                scaling, rows = self._matrices[matrix]
                scaling.write(free[0], rows, of_inputs, scales)
            self._slots[free[0]] = adapter
        self._held.add(adapter)
        return self._slots.index(adapter)

    def release_slot(self, adapter: Adapter) -> None:
        self._held.remove(adapter)

    def release(self, adapter: Adapter) -> None:
        self._slots = [None if other is adapter else other for other in self._slots]

    def bind_step(self, plan: Plan, uses: AdapterUses) -> list[Layer]:
        """Layers: the first adapter of each token, then the second, …, which scale one after another."""
        import torch

        each = [use for use, chunk in zip(uses, plan.chunks, strict=True) for _ in chunk.token_ids]
        layers = []
        for depth in range(max(map(len, each))):
            found = [(token, *use[depth]) for token, use in enumerate(each) if len(use) > depth]
            layers.append(tuple(torch.tensor(column, device=self._device) for column in zip(*found, strict=True)))
        return layers

    def bind_logits(self, uses: AdapterUses) -> None:
        """None: IA³ scales nothing after the hidden states."""

    def bind_tower(self, uses: AdapterUses, counts: Sequence[int]) -> None:
        """None: these adapters do not change towers."""


@hookimpl
def quire_adapter_runtimes() -> Iterable[AdapterRuntime]:
    """The runtime of the PEFT type IA3."""
    yield AdapterRuntime("tour-ia3", frozenset({"IA3"}), Ia3)
