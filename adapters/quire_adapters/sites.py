"""Where a model can be changed: its matrices, tables and experts, found by the names that checkpoints give them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.errors import BadRequest
from quire_adapters.changes import may_be_whole
from quire_kernels.low_rank import LowRank, Seated
from quire_models.blocks import DecoderModel, Table
from quire_models.mlp import Experts
from quire_models.names import Names, RowOrder, transpose
from quire_models.projection import Projection, changeable

PIECE = 1 << 15
"""Numbers looked at in one go where a whole matrix has to be read: so few that torch asks no other thread for help."""

_EXPERT = re.compile(r"(?P<path>.*)\.(?P<expert>\d+)\.(?P<matrix>gate|up|down)")


@dataclass(frozen=True, eq=False)
class Matrix:
    """One matrix of a projection, perhaps one that several were fused to.

    path: of the projection. start, stop: its outputs there. slices: the projection's slices that make it up.
    """

    path: str
    projection: Projection
    start: int
    stop: int
    slices: range

    @property
    def shape(self) -> tuple[int, int]:
        """[outputs, inputs]."""
        return self.stop - self.start, self.projection.inputs

    @property
    def bias(self) -> Tensor | None:
        """float32 [outputs], if it has one."""
        bias = self.projection.bias
        return None if bias is None else bias.data[self.start : self.stop].float()

    @property
    def device(self) -> torch.device:
        """Where its weight lies."""
        return self.projection.weight.device

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of its weight, float32."""
        return self.projection.rows(ids + self.start).float()


@dataclass(frozen=True, eq=False)
class Lookup:
    """A table of embeddings. read: rows of it by ids; scale: what they are multiplied by when looked up."""

    path: str
    table: Table
    read: Callable[[Tensor], Tensor]
    scale: float

    @property
    def shape(self) -> tuple[int, int]:
        """[rows, width]."""
        return self.table.count, self.table.width

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.table.weight.device

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of it, float32."""
        return self.read(ids).float()


@dataclass(frozen=True, eq=False)
class Mixture:
    """The experts of one block. expert, matrix: one of theirs ("gate", "up", "down"); None for all, stacked."""

    path: str
    experts: Experts
    expert: int | None = None
    matrix: str = ""

    @property
    def count(self) -> int:
        """Experts."""
        return len(self.experts.down)

    def shape(self, matrix: str) -> tuple[int, int]:
        """[outputs, inputs] of a matrix of each expert: gate, up, gate_up or down."""
        hidden, width = self.experts.hidden, self.experts.down.shape[1]
        return {"gate_up": (2 * hidden, width), "down": (width, hidden)}.get(matrix, (hidden, width))


Site = Matrix | Lookup | Mixture


@dataclass(frozen=True, eq=False)
class Base:
    """A weight or bias of the model. rows: of it, by ids. replaceable: whether an adapter may bring another.

    is_vocabulary: whether it has a row for each token.
    """

    shape: tuple[int, ...]
    rows: Callable[[Tensor], Tensor]
    device: torch.device
    replaceable: bool = False
    is_vocabulary: bool = False

    def equals(self, tensor: Tensor, dtype: torch.dtype) -> bool:
        """Whether a tensor of its shape, rounded to `dtype`, is the same."""
        width = self.shape[1] if len(self.shape) > 1 else 1
        every = pieces(self.shape[0], width, self.device)
        return all(torch.equal(self.rows(ids).cpu(), tensor[ids.cpu()].to(dtype).float()) for ids in every)


class Sites:
    """Those of one model."""

    def __init__(self, model: DecoderModel, names: Names) -> None:
        self._names, self._decoder = names, model.part
        self._parameters = dict(model.named_parameters())
        self.tables: dict[str, Lookup] = {}
        self.mixtures: dict[str, Mixture] = {}
        self.projections: dict[str, Projection] = {}
        for path, module in changeable(model).items():
            if isinstance(module, Projection):
                self.projections[path] = module
            elif isinstance(module, Experts):
                self.mixtures[path] = Mixture(path, module)
            elif isinstance(module, Table):
                self.tables[path] = _lookup(model, path, module)
        self._matrices = {name: matrix for path in self.projections for name, matrix in self._matrices_of(path)}

    def _matrices_of(self, path: str) -> Iterator[tuple[str, Matrix]]:
        projection = self.projections[path]
        parts = self.slices(path)
        yield path, Matrix(path, projection, 0, projection.outputs, range(len(parts)))
        parent = path.rpartition(".")[0]
        for i, (name, rows) in enumerate(projection.slices.items()):
            yield f"{parent}.{name}", Matrix(path, projection, rows.start, rows.stop, range(i, i + 1))

    def slices(self, path: str) -> list[tuple[int, int]]:
        """(start, stop) of the outputs of each matrix that a projection fuses."""
        projection = self.projections[path]
        return [(rows.start, rows.stop) for rows in projection.slices.values()] or [(0, projection.outputs)]

    def seated(self, low_rank: LowRank, seats: int, dtype: torch.dtype, device: torch.device) -> dict[str, Seated]:
        """Seats on every projection, by its path."""
        return {
            path: low_rank(projection.inputs, self.slices(path), seats, dtype, device)
            for path, projection in self.projections.items()
        }

    def find(self, module: str) -> Site:
        """The site of a module, by the path it has in a checkpoint. Raises BadRequest if there is none."""
        for ours in self._ours(module):
            site = self._site(ours)
            if site is not None:
                self._refuse_transformed(module, ours)
                return site
        raise BadRequest(
            f"The adapter changes {module!r}; this model has no matrix, table or expert of that name.", "lora_path"
        )

    def _ours(self, module: str) -> list[str]:
        """What it may be here; the second for adapters of a model that was loaded without its head."""
        return [self._names.rename(theirs) for theirs in (module, f"model.{module}")]

    def _site(self, ours: str) -> Site | None:
        return self._matrices.get(ours) or self.tables.get(ours) or self._mixture(ours)

    def base(self, module: str, kind: str) -> Base | None:
        """The `weight` or `bias` of a module, by the path it has in a checkpoint; None if it has none of its own."""
        for ours in self._ours(module):
            site = self._site(ours)
            if isinstance(site, Matrix) and kind == "bias" and site.bias is not None:
                return Base(site.shape[:1], site.bias.__getitem__, site.device, replaceable=True)
            if isinstance(site, Matrix) and kind == "weight":
                return Base(site.shape, site.rows, site.device, may_be_whole(site.path), site.path == "head")
            if isinstance(site, Lookup) and kind == "weight":
                return Base(site.shape, site.rows, site.device, True, site.path == "embed")
            parameter = self._parameters.get(f"{ours}.{kind}")
            if site is None and parameter is not None:
                vector = parameter.data.float()
                return Base(tuple(vector.shape), vector.__getitem__, vector.device)
        return None

    def _mixture(self, ours: str) -> Mixture | None:
        found = _EXPERT.fullmatch(ours)
        if found is None or found["path"] not in self.mixtures:
            return self.mixtures.get(ours)
        whole = self.mixtures[found["path"]]
        expert = int(found["expert"])
        return Mixture(whole.path, whole.experts, expert, found["matrix"]) if expert < whole.count else None

    def _refuse_transformed(self, module: str, ours: str) -> None:
        """Low-rank tensors are [rank, in] and [out, rank] however the weight lies; what else may be is not known."""
        transform = self._names.transform(f"{ours}.weight")
        if transform not in (None, transpose) and not isinstance(transform, RowOrder):
            raise BadRequest(
                f"The adapter changes {module!r}, whose weight this model lays out unlike the checkpoint.", "lora_path"
            )

    def row_order(self, module: str) -> Tensor | None:
        """For a matrix whose outputs the checkpoint has in another order: int64 [outputs], theirs for each of ours."""
        for ours in self._ours(module):
            transform = self._names.transform(f"{ours}.weight")
            if ours in self._matrices and isinstance(transform, RowOrder):
                return transform.index(self._decoder)
        return None

    def max_bytes(self, max_rank: int) -> int:
        """No file can be larger: everything changed at once, in float32, with the head and tables beside it."""
        low_rank = sum(p.inputs + 3 * p.outputs for p in self.projections.values()) * max_rank
        experts = sum(m.count * 2 * sum(map(sum, map(m.shape, ("gate_up", "down")))) for m in self.mixtures.values())
        tables = sum(
            rows * width + (rows + width) * max_rank for rows, width in (t.shape for t in self.tables.values())
        )
        wholes = sum(p.outputs * p.inputs for path, p in self.projections.items() if may_be_whole(path))
        # twice as much as that, and room for the header
        return 8 * (low_rank + experts * max_rank + tables + wholes) + (1 << 24)

    @property
    def max_tensors(self) -> int:
        """No adapter has more: everything changed at once, each with all the kinds of tensors that there are."""
        experts = sum(3 * mixture.count + 2 for mixture in self.mixtures.values())
        return 8 * (len(self._matrices) + len(self._parameters) + len(self.tables) + experts)


def _lookup(model: DecoderModel, path: str, table: Table) -> Lookup:
    if path == "embed":
        return Lookup(path, table, model.embed_rows, model.embed_scale)
    return Lookup(path, table, lambda ids: table.weight.data.index_select(0, ids), 1.0)


def pieces(rows: int, width: int, device: torch.device) -> Iterator[Tensor]:
    """All row ids of a matrix [rows, width], some at a time."""
    step = max(1, (PIECE if device.type == "cpu" else PIECE << 8) // width)
    for start in range(0, rows, step):
        yield torch.arange(start, min(rows, start + step), device=device)
