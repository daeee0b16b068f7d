"""Which tensors of a checkpoint are matrices to quantize, according to the model that its architecture describes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor

from quire.engine.architectures.choice import find_architecture
from quire.engine.architectures.description import Description
from quire.errors import CheckpointError, ConfigError
from quire.records import Architecture, Registry
from quire_kernels import select
from quire_models.loading import checkpoint, tensor_files
from quire_models.loading.mapping import ParameterSlice, parameter_slices
from quire_models.loading.tensor_files import TensorFiles
from quire_models.loading.weight_names import RowOrder, WeightsMapper
from quire_models.model_part import ModelPart
from quire_models.modules.builder import ModuleBuilder
from quire_models.modules.experts import Experts
from quire_models.modules.projection import Projection

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Matrix:
    """A matrix to quantize. name: of its tensor in the checkpoint; module: the same without `.weight`.

    path: of Quire's module; slice_: where the tensor goes there. order: of its rows there, None = that of the tensor.
    """

    name: str
    path: str
    slice_: ParameterSlice
    order: Tensor | None

    @property
    def module(self) -> str:
        return self.name.removesuffix(".weight")

    @property
    def block(self) -> int | None:
        """Index of its block; None outside of blocks."""
        found = re.match(r"blocks\.(\d+)\.", self.path)
        return int(found[1]) if found else None


@dataclass(frozen=True)
class QuantizationPlan:
    """A checkpoint and its matrices, in the order of the model. names_of: the checkpoint's name of each of Quire's."""

    folder: Path
    files: TensorFiles
    architecture: Architecture
    decoder: ModelPart
    names: WeightsMapper
    matrices: tuple[Matrix, ...]
    names_of: Mapping[str, str]

    def read(self, name: str) -> Tensor:
        """One tensor. Raises CheckpointError for a matrix of another kind of numbers."""
        return self.files.read(name)

    def in_block(self, index: int) -> list[Matrix]:
        """The matrices of one block, without those of experts."""
        return [matrix for matrix in self.matrices if matrix.block == index and not _of_expert(matrix)]

    def outside_blocks(self) -> list[Matrix]:
        """The matrices that no block's inputs are recorded for: those of experts, and the head."""
        return [matrix for matrix in self.matrices if matrix.block is None or _of_expert(matrix)]


def _of_expert(matrix: Matrix) -> bool:
    return bool(matrix.slice_.index) and isinstance(matrix.slice_.index[0], int)


def read_plan(folder: Path, registry: Registry, ignored: Sequence[str]) -> QuantizationPlan:
    """Find the matrices of a model folder whose names match none of the patterns `ignored`.

    Raises CheckpointError for a folder that cannot be read or is quantized already, ConfigError for a pattern that
    matches nothing unless it is one of the defaults, UnknownArchitecture, and PluginError.
    """
    if checkpoint.quantization_config(folder) is not None:
        raise CheckpointError(f"{folder} is quantized already; use the original.")
    parsed = checkpoint.read_config(folder)
    architecture = find_architecture(parsed.architectures, registry)
    description = Description(architecture, parsed, registry.plugin_of("quire_architectures", architecture.name))
    decoder, names = description.decoder(), description.names()
    files = tensor_files.find(folder)
    model = decoder.build(ModuleBuilder(select.reference(), torch.float32, torch.device("meta")))
    slices = parameter_slices(model)
    modules = dict(model.named_modules())
    names_of = {names.rename(name): name for name in files if not names.ignores(name)}
    found = []
    for ours, name in names_of.items():
        slice_ = slices.get(ours)
        if slice_ is None or len(files[name]) != 2 or not name.endswith(".weight"):
            continue
        path = slice_.parameter.removesuffix(".weight")
        module = modules.get(path) or modules.get(path.rpartition(".")[0])
        transform = names.transform(ours)
        if not isinstance(module, Projection | Experts) or not (transform is None or isinstance(transform, RowOrder)):
            continue
        if path == "head" and decoder.tied:
            continue
        order = None if transform is None else transform.index(decoder)
        found.append(Matrix(name, path, slice_, order))
    matrices = tuple(matrix for matrix in found if not _is_ignored(matrix, ignored))
    if not matrices:
        raise CheckpointError(f"{folder} has no matrices to quantize.")
    for pattern in ignored:
        if pattern not in DEFAULT_IGNORED and not any(_matches(matrix, pattern) for matrix in found):
            raise ConfigError(f"--ignore {pattern}: the model has no matrix of that name.")
    return QuantizationPlan(folder, files, architecture, decoder, names, matrices, names_of)


DEFAULT_IGNORED = ("lm_head", "router")
"""Head, and routers of mixtures of experts."""


def _is_ignored(matrix: Matrix, ignored: Sequence[str]) -> bool:
    return any(_matches(matrix, pattern) for pattern in ignored)


def _matches(matrix: Matrix, pattern: str) -> bool:
    """Whether a glob is the whole name of the module, in the checkpoint or in Quire, or the last part of it."""
    names = (matrix.module, matrix.path, "lm_head" if matrix.path == "head" else matrix.path)
    return any(fnmatchcase(part, pattern) for name in names for part in (name, name.rpartition(".")[2]))


def unquantized_modules(plan: QuantizationPlan) -> Iterator[str]:
    """Modules of the checkpoint with a matrix that stays as it is, for `ignore` of the format's config."""
    chosen = {matrix.name for matrix in plan.matrices}
    for name, shape in plan.files.items():
        if len(shape) >= 2 and name.endswith(".weight") and name not in chosen:
            yield name.removesuffix(".weight")
    if "lm_head.weight" not in plan.files:
        yield "lm_head"  # tied to the embeddings, but still a linear module
