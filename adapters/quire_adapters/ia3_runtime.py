"""The IA³ runtime: an adapter is a few vectors of factors, one factor for each input or output of a matrix.

Outputs of a projection are scaled by the op `low_rank`. The last matrix of a gated MLP reads act(gate) · up, so factors
of its inputs are applied to the outputs of `up`. Any other matrix is multiplied a second time by the scaled inputs, for
the tokens concerned only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quire.errors import BadRequest
from quire.records import AdapterMetadata, AdapterUses, Context
from quire.types import Plan
from quire_adapters.divided import AdapterCut
from quire_adapters.peft import tensor_files as files
from quire_adapters.slot_allocator import SlotAllocator
from quire_adapters.target_modules import LinearTarget, TargetModules
from quire_kernels.low_rank import AdapterSlots, LowRankUpdate, Segments, SegmentsCache, pack_all
from quire_models.modules.blocks import DecoderModel
from quire_models.modules.mlp import GatedFeedForward
from quire_models.modules.projection import Projection

PREFIX, SUFFIX = "base_model.model.", ".ia3_l"
"""What PEFT adds before and after a module's path."""

Rows = tuple[int, int]
"""(start, stop) of a matrix in the outputs of the projection that it was fused into."""


@dataclass(frozen=True, eq=False)
class Ia3Weights:
    """One adapter, read and packed.

    outputs: packed factors of outputs, by the projection's path. inputs: factors [inputs] of each matrix, by the
    projection's path and the matrix's rows.
    """

    outputs: Mapping[str, Any]
    inputs: Mapping[str, Mapping[Rows, Tensor]]
    metadata: AdapterMetadata


@dataclass(frozen=True, slots=True)
class Ia3Binding:
    """What is bound for a step in which inputs are scaled. Since it is not `Segments`, no recorded program runs."""

    segments: Segments


@dataclass(eq=False)
class ScaledProjection:
    """The delta of one projection. slices: its matrices. inputs: by slot, as in `Ia3Weights`."""

    projection: Projection
    outputs: AdapterSlots
    slices: Sequence[Rows]
    inputs: dict[int, dict[Rows, Tensor]] = field(default_factory=dict)

    def __call__(self, y: Tensor, x: Any, adapters: Any) -> Tensor:
        if isinstance(adapters, Ia3Binding):
            adapters = adapters.segments
            self._scale_inputs(y, x, adapters)
        return self.outputs(y, x, adapters)

    def _scale_inputs(self, y: Tensor, x: Tensor, segments: Segments) -> None:
        """y[t, slice] += (x[t] · (product of t's factors - 1)) weightᵀ for all tokens in segments, if any has factors.

        It is added to y instead of replacing it, since y may already contain another runtime's delta.
        """
        starts, products = segments.host.starts, dict[Rows, Tensor]()
        for s, slot in enumerate(segments.host.slots.tolist()):
            mine = slice(int(starts[s]), int(starts[s + 1]))
            tokens, weights = segments.tokens[mine].long(), segments.weights[mine, None]
            for rows, factors in self.inputs.get(slot, {}).items():
                product = products.setdefault(rows, torch.ones_like(x, dtype=torch.float32))
                product[tokens] *= 1 + weights * (factors - 1)
        tokens, bias = segments.tokens.long().unique(), self.projection.bias
        for (start, stop), product in products.items():
            scaled = (x[tokens].float() * (product[tokens] - 1)).to(x.dtype)
            added = self.projection.multiply(scaled, float32=True)[:, start:stop].float()
            if bias is not None:
                added = added - bias[start:stop]
            y[:, start:stop].index_copy_(0, tokens, (y[tokens, start:stop] + added).to(y.dtype))

    def put(self, slot: int, adapter: Ia3Weights, path: str) -> None:
        if path in adapter.outputs:
            self.outputs.put(slot, adapter.outputs[path])
        if path in adapter.inputs:
            device = self.projection.weight.device
            self.inputs[slot] = {rows: factors.to(device) for rows, factors in adapter.inputs[path].items()}

    def clear(self, slot: int) -> None:
        self.outputs.clear(slot)
        self.inputs.pop(slot, None)


class Ia3Runtime:
    """The adapter runtime of `peft_type` IA3, a `quire.records.AdapterRuntimeImpl`."""

    def __init__(self, context: Context) -> None:
        self._names, self._in_subprocess = context.names, context.in_subprocess
        self._in_subprocess.prepare(files.read)
        self._allocator = SlotAllocator[Ia3Weights](context.max_slots, self._load_slot, self._clear_slot)
        self._segments = SegmentsCache()
        self._device = torch.device("cpu")

    def attach(self, model: DecoderModel) -> None:
        self._device = model.device
        self._targets = own = TargetModules(model, self._names)
        shard = getattr(model, "shard", None)
        self._cut = None if shard is None else AdapterCut(shard)
        if shard is not None:
            self._targets = TargetModules(shard.whole, self._names)
        self._scaled: dict[str, ScaledProjection] = {}
        count = len(self._allocator.occupants)
        for path, projection in own.projections.items():
            if path.startswith("blocks."):
                slices = own.slices(path)
                slots = model.ops.low_rank(projection.inputs, slices, count, model.dtype, model.device)
                projection.delta = self._scaled[path] = ScaledProjection(projection, slots, slices)
        self._gated = _gated_inputs(model if shard is None else shard.whole)
        sizes = sum(each.inputs + each.outputs for each in self._targets.projections.values())
        self._max_bytes = 8 * sizes + (1 << 20)  # float64 tensors, and their names

    def load(self, name: str, path: Path) -> Ia3Weights:
        found = self._in_subprocess(files.read, str(path), self._max_bytes, self._targets.max_tensors)
        tensors = files.tensors_of(found.value, found.memory)
        if not tensors:
            raise BadRequest(f"The adapter `{name}` has no vectors.", "lora_path")
        scales: dict[str, Tensor] = {}
        inputs: dict[str, dict[Rows, Tensor]] = {}
        for key, tensor in tensors.items():
            target = self._target_of(key)
            factors, of_inputs = _factors(key, tensor, target)
            order = None if of_inputs else self._targets.row_order(_module_of(key))
            if order is not None:
                factors = factors[order]
            projection, rows = target.path, (target.start, target.stop)
            if self._cut is not None and not self._cut.has(projection):
                continue  # another stage of the model has it
            if of_inputs and projection not in self._gated:
                inputs.setdefault(projection, {})[self._own_rows(projection, rows)] = self._own_inputs(
                    projection, factors
                )
                continue
            if of_inputs:
                projection, rows = self._gated[projection]
            scale = scales.setdefault(projection, torch.ones(self._targets.projections[projection].outputs))
            scale[rows[0] : rows[1]] *= factors
        targets = tuple(dict.fromkeys(key.removesuffix(SUFFIX).rpartition(".")[2] for key in tensors))
        metadata = AdapterMetadata(num_bytes=4 * sum(tensor.numel() for tensor in tensors.values()), targets=targets)
        return Ia3Weights(self._packed(scales), inputs, metadata)

    def _target_of(self, key: str) -> LinearTarget:
        """The matrix that a vector scales. Raises BadRequest."""
        if not (key.startswith(PREFIX) and key.endswith(SUFFIX)):
            raise BadRequest(
                f"`{key}` is not an IA³ vector ({PREFIX}…{SUFFIX}); an IA³ adapter can have nothing else.", "lora_path"
            )
        module = _module_of(key)
        target = self._targets.find(module)
        if not isinstance(target, LinearTarget) or not target.path.startswith("blocks."):
            raise BadRequest(
                f"The adapter scales `{module}`, which is not a matrix of the model's blocks.", "lora_path"
            )
        return target

    def _own_rows(self, path: str, rows: Rows) -> Rows:
        """The outputs of a matrix in what this rank has of the projection."""
        if self._cut is None:
            return rows
        whole, own = self._targets.slices(path), self._scaled[path]
        return own.slices[whole.index(rows)] if rows in whole else (0, own.projection.outputs)

    def _own_inputs(self, path: str, factors: Tensor) -> Tensor:
        return factors if self._cut is None else self._cut.inputs(path, factors)

    def _packed(self, scales: Mapping[str, Tensor]) -> Mapping[str, Any]:
        """`scales`, float32 [outputs] by path, packed for slots."""
        pairs = []
        for path, scale in scales.items():
            delta = self._scaled[path]
            own = scale if self._cut is None else self._cut.outputs(path, scale)
            parts = [own[start:stop] for start, stop in delta.slices]
            pairs.append((delta.outputs, [LowRankUpdate(scale=part) if (part != 1).any() else None for part in parts]))
        return dict(zip(scales, pack_all(pairs)[0], strict=True))

    def describe(self, adapter: Ia3Weights) -> AdapterMetadata:
        return adapter.metadata

    def acquire_slot(self, adapter: Ia3Weights) -> int | None:
        return self._allocator.acquire_slot(adapter)

    def release_slot(self, adapter: Ia3Weights) -> None:
        self._allocator.release_slot(adapter)

    def release(self, adapter: Ia3Weights) -> None:
        self._allocator.release(adapter)

    def _load_slot(self, adapter: Ia3Weights, slot: int) -> None:
        for path, delta in self._scaled.items():
            delta.put(slot, adapter, path)

    def _clear_slot(self, adapter: Ia3Weights, slot: int) -> None:
        for delta in self._scaled.values():
            delta.clear(slot)

    def bind_step(self, plan: Plan, uses: AdapterUses) -> Segments | Ia3Binding:
        segments = self._segments.get(uses, [len(chunk.token_ids) for chunk in plan.chunks], self._device)
        occupants = self._allocator.occupants
        used = [occupants[slot] for slot in segments.host.slots.tolist()]
        return Ia3Binding(segments) if any(adapter and adapter.inputs for adapter in used) else segments

    def bind_logits(self, uses: AdapterUses) -> None:
        """None: IA³ has no vectors outside of the blocks."""

    def bind_tower(self, uses: AdapterUses, counts: Sequence[int]) -> None:
        """None: IA³ has no vectors in the tower."""


def _module_of(key: str) -> str:
    return key.removeprefix(PREFIX).removesuffix(SUFFIX)


def _factors(key: str, tensor: Tensor, target: LinearTarget) -> tuple[Tensor, bool]:
    """The vector, float32, and whether it scales the inputs of the matrix. Raises BadRequest."""
    outputs, inputs = target.shape
    if tensor.shape not in ((1, inputs), (outputs, 1)):
        shape = list(tensor.shape)
        raise BadRequest(f"`{key}` has shape {shape}; it must be [1, {inputs}] or [{outputs}, 1].", "lora_path")
    factors = tensor.flatten().float()
    if not factors.isfinite().all():
        raise BadRequest(f"`{key}` has numbers that are not finite.", "lora_path")
    return factors, tensor.shape == (1, inputs)


def _gated_inputs(model: DecoderModel) -> Mapping[str, tuple[str, Rows]]:
    """For each projection that reads act(gate) · up: the projection that contains `up`, and its rows there."""
    found: dict[str, tuple[str, Rows]] = {}
    for path, module in model.named_modules():
        if isinstance(module, GatedFeedForward) and hasattr(module.gate_up, "slices"):
            up = module.gate_up.slices["up"]
            found[f"{path}.down"] = f"{path}.gate_up", (up.start, up.stop)
    return found
