"""The runtime of IA³: an adapter is a few vectors, each a factor for every channel of a projection.

What a projection gives is scaled by the op `low_rank`. What the last matrix of a gated MLP reads is act(gate) · up, so
its factors go to what `up` gives. Any other matrix multiplies the rescaled inputs once more, for these tokens only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quire.errors import BadRequest
from quire.records import AdapterFacts, AdapterUses, Context
from quire.types import Plan
from quire_adapters import files
from quire_adapters.chairs import Chairs
from quire_adapters.sites import Matrix, Sites
from quire_kernels.low_rank import Delta, LastSegments, Seated, Segments, pack_all
from quire_models.blocks import DecoderModel
from quire_models.mlp import GatedFeedForward
from quire_models.projection import Projection

PREFIX, SUFFIX = "base_model.model.", ".ia3_l"
"""What PEFT puts around a module's path."""

Rows = tuple[int, int]
"""(start, stop) of a matrix in the outputs of the projection that it was fused to."""


@dataclass(frozen=True, eq=False)
class Rescaled:
    """One adapter, read and packed.

    outputs: what takes a seat, by the projection's path. inputs: the factors [inputs] of what matrices read, by the
    projection's path.
    """

    outputs: Mapping[str, Any]
    inputs: Mapping[str, Mapping[Rows, Tensor]]
    facts: AdapterFacts


@dataclass(frozen=True, slots=True)
class WithInputs:
    """What is bound for a step in which inputs are rescaled, which no recorded program does: it is no `Segments`."""

    segments: Segments


@dataclass(eq=False)
class Place:
    """The adapters on one projection: its delta. inputs: by seat, as in `Rescaled`."""

    projection: Projection
    outputs: Seated
    slices: Sequence[Rows]
    inputs: dict[int, dict[Rows, Tensor]] = field(default_factory=dict)

    def __call__(self, y: Tensor, x: Any, adapters: Any) -> Tensor:
        """See `quire_models.projection.ProjectionDelta`."""
        if isinstance(adapters, WithInputs):
            adapters = adapters.segments
            self._rescale_inputs(y, x, adapters)
        return self.outputs(y, x, adapters)

    def _rescale_inputs(self, y: Tensor, x: Tensor, segments: Segments) -> None:
        """y[t, slice] += (x[t] · (product of t's factors - 1)) weightᵀ for all tokens in segments, if any has factors.

        Added, and not put in its place, since y may have the share of another runtime already.
        """
        starts, products = segments.host.starts, dict[Rows, Tensor]()
        for s, seat in enumerate(segments.host.seats.tolist()):
            mine = slice(int(starts[s]), int(starts[s + 1]))
            tokens, weights = segments.tokens[mine].long(), segments.weights[mine, None]
            for rows, factors in self.inputs.get(seat, {}).items():
                product = products.setdefault(rows, torch.ones_like(x, dtype=torch.float32))
                product[tokens] *= 1 + weights * (factors - 1)
        tokens, bias = segments.tokens.long().unique(), self.projection.bias
        for (start, stop), product in products.items():
            more = (x[tokens].float() * (product[tokens] - 1)).to(x.dtype)
            share = self.projection.multiply(more, float32=True)[:, start:stop].float()
            if bias is not None:
                share = share - bias[start:stop]
            y[:, start:stop].index_copy_(0, tokens, (y[tokens, start:stop] + share).to(y.dtype))

    def put(self, seat: int, adapter: Rescaled, path: str) -> None:
        """An adapter takes a seat that nobody has."""
        if path in adapter.outputs:
            self.outputs.put(seat, adapter.outputs[path])
        if path in adapter.inputs:
            device = self.projection.weight.device
            self.inputs[seat] = {rows: factors.to(device) for rows, factors in adapter.inputs[path].items()}

    def clear(self, seat: int) -> None:
        """Nobody sits there."""
        self.outputs.clear(seat)
        self.inputs.pop(seat, None)


class Rescaling:
    """See `quire.records.RunsAdapters`."""

    def __init__(self, context: Context) -> None:
        self._names, self._apart = context.names, context.apart
        self._apart.prepare(files.read)
        self._chairs = Chairs[Rescaled](context.max_seats, self._sit_down, self._stand_up)
        self._segments = LastSegments()
        self._device = torch.device("cpu")

    def attach(self, model: DecoderModel) -> None:
        """See `RunsAdapters`."""
        self._device = model.device
        self._sites = Sites(model, self._names)
        self._places: dict[str, Place] = {}
        count = len(self._chairs.taken)
        for path, projection in self._sites.projections.items():
            if path.startswith("blocks."):
                slices = self._sites.slices(path)
                seats = model.ops.low_rank(projection.inputs, slices, count, model.dtype, model.device)
                projection.delta = self._places[path] = Place(projection, seats, slices)
        self._gated = _read_by_gated(model)
        sizes = sum(place.projection.inputs + place.projection.outputs for place in self._places.values())
        self._max_bytes = 8 * sizes + (1 << 20)  # float64, and the names

    def load(self, name: str, path: Path) -> Rescaled:
        """See `RunsAdapters`."""
        found = self._apart(files.read, str(path), self._max_bytes, self._sites.max_tensors)
        tensors = files.tensors_of(found.value, found.memory)
        if not tensors:
            raise BadRequest(f"The adapter `{name}` has no vectors.", "lora_path")
        scales: dict[str, Tensor] = {}
        inputs: dict[str, dict[Rows, Tensor]] = {}
        for key, tensor in tensors.items():
            site = self._site(key)
            factors, read = _factors(key, tensor, site)
            order = None if read else self._sites.row_order(_module_of(key))
            if order is not None:
                factors = factors[order]
            at, rows = site.path, (site.start, site.stop)
            if read and at not in self._gated:
                inputs.setdefault(at, {})[rows] = factors
                continue
            if read:
                at, rows = self._gated[at]
            scale = scales.setdefault(at, torch.ones(self._places[at].projection.outputs))
            scale[rows[0] : rows[1]] *= factors
        targets = tuple(dict.fromkeys(key.removesuffix(SUFFIX).rpartition(".")[2] for key in tensors))
        facts = AdapterFacts(num_bytes=4 * sum(tensor.numel() for tensor in tensors.values()), targets=targets)
        return Rescaled(self._packed(scales), inputs, facts)

    def _site(self, key: str) -> Matrix:
        """The matrix that a vector belongs to."""
        if not (key.startswith(PREFIX) and key.endswith(SUFFIX)):
            raise BadRequest(f"`{key}` is no IA³ vector ({PREFIX}…{SUFFIX}); nothing else can be run.", "lora_path")
        module = _module_of(key)
        site = self._sites.find(module)
        if not isinstance(site, Matrix) or site.path not in self._places:
            raise BadRequest(f"The adapter scales `{module}`, which is no matrix of the model's blocks.", "lora_path")
        return site

    def _packed(self, scales: Mapping[str, Tensor]) -> Mapping[str, Any]:
        """What takes a seat, by path; `scales`: float32 [outputs], by path."""
        shares = []
        for path, scale in scales.items():
            place = self._places[path]
            parts = [scale[start:stop] for start, stop in place.slices]
            shares.append((place.outputs, [Delta(scale=part) if (part != 1).any() else None for part in parts]))
        return dict(zip(scales, pack_all(shares)[0], strict=True))

    def describe(self, adapter: Rescaled) -> AdapterFacts:
        """See `RunsAdapters`."""
        return adapter.facts

    def seat(self, adapter: Rescaled) -> int | None:
        """See `Chairs`."""
        return self._chairs.seat(adapter)

    def unseat(self, adapter: Rescaled) -> None:
        """See `Chairs`."""
        self._chairs.unseat(adapter)

    def release(self, adapter: Rescaled) -> None:
        """See `RunsAdapters`. No token of a step that is under way uses its seat."""
        self._chairs.release(adapter)

    def _sit_down(self, adapter: Rescaled, seat: int) -> None:
        for path, place in self._places.items():
            place.put(seat, adapter, path)

    def _stand_up(self, adapter: Rescaled, seat: int) -> None:
        for place in self._places.values():
            place.clear(seat)

    def bind(self, plan: Plan, uses: AdapterUses) -> Segments | WithInputs:
        """See `RunsAdapters`."""
        segments = self._segments.of(uses, [len(chunk.token_ids) for chunk in plan.chunks], self._device)
        seated = self._chairs.taken
        used = [seated[seat] for seat in segments.host.seats.tolist()]
        return WithInputs(segments) if any(adapter and adapter.inputs for adapter in used) else segments

    def bind_rows(self, uses: AdapterUses) -> None:
        """See `RunsAdapters`. There are no vectors outside of the blocks."""

    def bind_counts(self, uses: AdapterUses, counts: Sequence[int]) -> None:
        """See `RunsAdapters`. There are none in the tower either."""


def _module_of(key: str) -> str:
    """The module that a vector is for."""
    return key.removeprefix(PREFIX).removesuffix(SUFFIX)


def _factors(key: str, tensor: Tensor, site: Matrix) -> tuple[Tensor, bool]:
    """The vector, float32, and whether it scales what the matrix reads."""
    outputs, inputs = site.shape
    if tensor.shape not in ((1, inputs), (outputs, 1)):
        shape = list(tensor.shape)
        raise BadRequest(f"`{key}` has shape {shape}; it must be [1, {inputs}] or [{outputs}, 1].", "lora_path")
    factors = tensor.flatten().float()
    if not factors.isfinite().all():
        raise BadRequest(f"`{key}` has numbers that are not finite.", "lora_path")
    return factors, tensor.shape == (1, inputs)


def _read_by_gated(model: DecoderModel) -> Mapping[str, tuple[str, Rows]]:
    """Paths of projections that read act(gate) · up; with each the projection that `up` is in, and where."""
    found: dict[str, tuple[str, Rows]] = {}
    for path, module in model.named_modules():
        if isinstance(module, GatedFeedForward):
            up = module.gate_up.slices["up"]
            found[f"{path}.down"] = f"{path}.gate_up", (up.start, up.stop)
    return found
