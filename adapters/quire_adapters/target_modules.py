"""The modules of a model that an adapter can target, found by the names that they have in checkpoints."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from quire.errors import BadRequest
from quire_adapters.weights import can_be_replaced
from quire_kernels.low_rank import AdapterSlots, LowRank
from quire_models.loading.weight_names import RowOrder, WeightsMapper, transpose
from quire_models.modules.blocks import DecoderModel
from quire_models.modules.embedding import EmbeddingTable
from quire_models.modules.experts import Experts
from quire_models.modules.projection import Projection, adaptable_modules

BLOCK_SIZE = 1 << 15
"""Numbers read at once from a whole matrix on the CPU: so few that torch does not use further threads."""

_EXPERT = re.compile(r"(?P<path>.*)\.(?P<expert>\d+)\.(?P<matrix>gate|up|down)")


@dataclass(frozen=True, eq=False)
class LinearTarget:
    """A matrix: a projection, or one of the matrices that were fused into it.

    path: of the projection. start, stop: the matrix's outputs in the projection. slices: its slices of the projection.
    """

    path: str
    projection: Projection
    start: int
    stop: int
    slices: range

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs) of the matrix."""
        return self.stop - self.start, self.projection.inputs

    @property
    def bias(self) -> Tensor | None:
        """float32 [outputs], or None."""
        bias = self.projection.bias
        return None if bias is None else bias.data[self.start : self.stop].float()

    @property
    def device(self) -> torch.device:
        return self.projection.weight.device

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of the weight, float32."""
        return self.projection.rows(ids + self.start).float()


@dataclass(frozen=True, eq=False)
class EmbeddingTarget:
    """An embedding table. read: returns its rows by ids. scale: factor of rows that are looked up."""

    path: str
    table: EmbeddingTable
    read: Callable[[Tensor], Tensor]
    scale: float

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, width) of the table."""
        return self.table.count, self.table.width

    @property
    def device(self) -> torch.device:
        return self.table.weight.device

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of the table, float32."""
        return self.read(ids).float()


@dataclass(frozen=True, eq=False)
class ExpertsTarget:
    """The experts of one block, or a matrix of one of them.

    expert: its number, or None for all experts, stacked. matrix: "gate", "up" or "down" of that expert.
    """

    path: str
    experts: Experts
    expert: int | None = None
    matrix: str = ""

    @property
    def count(self) -> int:
        return self.experts.count

    def shape(self, matrix: str) -> tuple[int, int]:
        """(outputs, inputs) of a matrix of each expert: gate, up, gate_up or down."""
        hidden, width = self.experts.intermediate_size, self.experts.width
        return {"gate_up": (self.experts.first_outputs, width), "down": (width, hidden)}.get(matrix, (hidden, width))

    def stacked_name(self, matrix: str) -> str:
        """The name of a stacked matrix without `_proj`: gate_up, down, or up for experts without gates."""
        return "up" if matrix == "gate_up" and not self.experts.mlp.gated else matrix

    @property
    def up_start(self) -> int:
        """The first output of up in the first matrix."""
        return self.experts.first_outputs - self.experts.intermediate_size


Target = LinearTarget | EmbeddingTarget | ExpertsTarget


@dataclass(frozen=True, eq=False)
class BaseWeight:
    """A weight or bias of the model. parameter, start: which one, and the first of its rows. rows: returns its rows by
    ids. is_replaceable: an adapter may replace it. is_vocabulary: it has a row for each token.
    """

    parameter: str
    start: int
    shape: tuple[int, ...]
    rows: Callable[[Tensor], Tensor]
    device: torch.device
    is_replaceable: bool = False
    is_vocabulary: bool = False

    def equals(self, tensor: Tensor, dtype: torch.dtype) -> bool:
        """Whether a tensor of the same shape, rounded to `dtype`, has the same values."""
        width = self.shape[1] if len(self.shape) > 1 else 1
        blocks = row_blocks(self.shape[0], width, self.device)
        return all(torch.equal(self.rows(ids).cpu(), tensor[ids.cpu()].to(dtype).float()) for ids in blocks)


class StoredRows(NamedTuple):
    """Rows of a weight by ids, float32, and where it is."""

    rows: Callable[[Tensor], Tensor]
    device: torch.device


class TargetModules:
    """All targets of one model, or of a rank's part of it. tables, experts and projections are by module path."""

    def __init__(self, model: DecoderModel, names: WeightsMapper) -> None:
        self._names, self._decoder = names, model.part
        self._parameters = dict(model.named_parameters())
        self.tables: dict[str, EmbeddingTarget] = {}
        self.experts: dict[str, ExpertsTarget] = {}
        self.projections: dict[str, Projection] = {}
        for path, module in adaptable_modules(model).items():
            if isinstance(module, Projection):
                self.projections[path] = module
            elif isinstance(module, Experts):
                self.experts[path] = ExpertsTarget(path, module)
            elif isinstance(module, EmbeddingTable):
                self.tables[path] = _embedding(model, path, module)
        self._linear = {name: target for path in self.projections for name, target in self._linear_of(path)}

    def _linear_of(self, path: str) -> Iterator[tuple[str, LinearTarget]]:
        projection = self.projections[path]
        parts = self.slices(path)
        yield path, LinearTarget(path, projection, 0, projection.outputs, range(len(parts)))
        parent = path.rpartition(".")[0]
        for i, (name, rows) in enumerate(projection.slices.items()):
            yield f"{parent}.{name}", LinearTarget(path, projection, rows.start, rows.stop, range(i, i + 1))

    def slices(self, path: str) -> list[tuple[int, int]]:
        """(start, stop) of the outputs of each matrix that was fused into a projection."""
        projection = self.projections[path]
        return [(rows.start, rows.stop) for rows in projection.slices.values()] or [(0, projection.outputs)]

    def adapter_slots(
        self, low_rank: LowRank, slots: int, dtype: torch.dtype, device: torch.device
    ) -> dict[str, AdapterSlots]:
        """New adapter slots for every projection, by its path."""
        return {
            path: low_rank(projection.inputs, self.slices(path), slots, dtype, device)
            for path, projection in self.projections.items()
        }

    def find(self, module: str) -> Target:
        """The target of a module, by its path in a checkpoint. Raises BadRequest if there is none."""
        for path in self._paths(module):
            target = self._target(path)
            if target is not None:
                self._check_layout(module, path)
                return target
        raise BadRequest(
            f"The adapter changes {module!r}; this model has no matrix, table or expert of that name.", "lora_path"
        )

    def _paths(self, module: str) -> list[str]:
        """Our paths that a module may have; the second for adapters of a model that was loaded without its head."""
        return [self._names.rename(name) for name in (module, f"model.{module}")]

    def _target(self, path: str) -> Target | None:
        return self._linear.get(path) or self.tables.get(path) or self._find_experts(path)

    def base(self, module: str, kind: str) -> BaseWeight | None:
        """The `weight` or `bias` of a module, by its path in a checkpoint; None if it has none of its own."""
        for path in self._paths(module):
            target = self._target(path)
            if isinstance(target, LinearTarget):
                of, device = (f"{target.path}.{kind}", target.start), target.device
                if kind == "bias" and target.bias is not None:
                    return BaseWeight(*of, target.shape[:1], target.bias.__getitem__, device, is_replaceable=True)
                if kind == "weight":
                    replaceable, is_head = can_be_replaced(target.path), target.path == "head"
                    return BaseWeight(*of, target.shape, target.rows, device, replaceable, is_head)
            if isinstance(target, EmbeddingTarget) and kind == "weight":
                is_embed = target.path == "embed"
                return BaseWeight(f"{target.path}.weight", 0, target.shape, target.rows, target.device, True, is_embed)
            parameter = self._parameters.get(f"{path}.{kind}")
            if target is None and parameter is not None:
                vector = parameter.data.float()
                return BaseWeight(f"{path}.{kind}", 0, tuple(vector.shape), vector.__getitem__, vector.device)
        return None

    def at(self, parameter: str) -> StoredRows | None:
        """The rows of a parameter, by its own name; None if there is none."""
        path, _, kind = parameter.rpartition(".")
        projection, table = self.projections.get(path), self.tables.get(path)
        if kind == "weight" and projection is not None:
            return StoredRows(lambda ids: projection.rows(ids).float(), projection.weight.device)
        if kind == "weight" and table is not None:
            return StoredRows(table.rows, table.device)
        found = self._parameters.get(parameter)
        return None if found is None else StoredRows(found.data.float().__getitem__, found.device)

    def _find_experts(self, path: str) -> ExpertsTarget | None:
        found = _EXPERT.fullmatch(path)
        if found is None or found["path"] not in self.experts:
            return self.experts.get(path)
        stacked = self.experts[found["path"]]
        expert = int(found["expert"])
        return ExpertsTarget(stacked.path, stacked.experts, expert, found["matrix"]) if expert < stacked.count else None

    def _check_layout(self, module: str, path: str) -> None:
        """Raise BadRequest if loading transforms the weight in a way that cannot be applied to low-rank tensors.

        They are [rank, inputs] and [outputs, rank] even where the weight is transposed.
        """
        transform = self._names.transform(f"{path}.weight")
        if transform not in (None, transpose) and not isinstance(transform, RowOrder):
            raise BadRequest(
                f"The adapter changes {module!r}, whose weight has another layout here than in the checkpoint.",
                "lora_path",
            )

    def row_order(self, module: str) -> Tensor | None:
        """For a matrix whose outputs have another order in the checkpoint: int64 [outputs], their indices there."""
        for path in self._paths(module):
            transform = self._names.transform(f"{path}.weight")
            if path in self._linear and isinstance(transform, RowOrder):
                return transform.index(self._decoder)
        return None

    def max_bytes(self, max_rank: int) -> int:
        """Upper bound of an adapter's file: all targets changed in float32, and all heads and tables replaced."""
        low_rank = sum(p.inputs + 3 * p.outputs for p in self.projections.values()) * max_rank
        experts = sum(m.count * 2 * sum(map(sum, map(m.shape, ("gate_up", "down")))) for m in self.experts.values())
        tables = sum(
            rows * width + (rows + width) * max_rank for rows, width in (t.shape for t in self.tables.values())
        )
        replaced = sum(p.outputs * p.inputs for path, p in self.projections.items() if can_be_replaced(path))
        # twice that, and the header
        return 8 * (low_rank + experts * max_rank + tables + replaced) + (1 << 24)

    @property
    def max_tensors(self) -> int:
        """Upper bound of an adapter's tensors: every target with all kinds of tensors."""
        experts = sum(3 * target.count + 2 for target in self.experts.values())
        return 8 * (len(self._linear) + len(self._parameters) + len(self.tables) + experts)


def _embedding(model: DecoderModel, path: str, table: EmbeddingTable) -> EmbeddingTarget:
    if path == "embed":
        rows = getattr(model, "held_rows", model.embed_rows)
        return EmbeddingTarget(path, table, rows, model.embed_scale)
    return EmbeddingTarget(path, table, table.rows, 1.0)


def row_blocks(rows: int, width: int, device: torch.device) -> Iterator[Tensor]:
    """All row ids of a matrix [rows, width], in blocks of limited size."""
    step = max(1, (BLOCK_SIZE if device.type == "cpu" else BLOCK_SIZE << 8) // width)
    for start in range(0, rows, step):
        yield torch.arange(start, min(rows, start + step), device=device)
