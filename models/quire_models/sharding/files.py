"""The weights of a checkpoint as one rank reads them: tensors under Quire's names, cut to what the rank has."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from quire_models.loading.mapping import CheckpointLoader, ParameterSlice, parameter_slices
from quire_models.loading.quantized_files import prefetch
from quire_models.loading.weight_names import RowOrder, WeightsMapper
from quire_models.sharding.cuts import WHOLE, Cut, Index, cut, slice_key, slice_names

if TYPE_CHECKING:
    from quire_models.loading.quantized_files import WeightFiles
    from quire_models.model_part import ModelPart

log = logging.getLogger(__name__)

Shape = tuple[int, ...]


@dataclass(frozen=True)
class _StoredPart:
    """Where a rank's tensor is: name: of the checkpoint. ours: Quire's name in the whole model. indices: what of it."""

    name: str
    ours: str
    indices: tuple[Index, ...]
    shape: Shape
    adds: bool


class CutFiles(Mapping[str, Shape]):
    """A `WeightFiles` of what a rank has.

    whole, own: modules of the whole model, without data, and of the rank. decoder: of the whole model. cuts: by
    parameter of the whole model.
    """

    def __init__(
        self,
        files: WeightFiles,
        names: WeightsMapper,
        decoder: ModelPart,
        whole: nn.Module,
        own: nn.Module,
        cuts: Mapping[str, Cut],
    ) -> None:
        self.files = files.files
        self._tensors, self._names, self._decoder = files, names, decoder
        self._found: dict[str, _StoredPart] = {}
        slices, shapes = parameter_slices(whole), {name: p.shape for name, p in whole.named_parameters()}
        parameters = dict(own.named_parameters())
        own_shapes = {name: parameter.shape for name, parameter in parameters.items()}
        own_names = slice_names(parameter_slices(own), own_shapes)
        here = names_here(whole, parameters)
        for name in filter(CheckpointLoader(whole, decoder, names).needs, files):
            ours = names.rename(name)
            slice_ = slices[ours]
            kept, parameter = cuts.get(slice_.parameter, WHOLE), here.get(slice_.parameter)
            place = None if parameter is None else kept.place(slice_.index, shapes[slice_.parameter])
            if place is None or parameter is None:
                continue
            index, indices = place
            shape = tuple(parameters[parameter].data[index].shape)
            own_name = own_names[slice_key(ParameterSlice(parameter, index), own_shapes[parameter])]
            self._found[own_name] = _StoredPart(name, ours, indices, shape, kept.adds)

    def __getitem__(self, name: str) -> Shape:
        return self._found[name].shape

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def read(self, name: str) -> Any:
        """A tensor on the CPU, a view of the mapped file where possible, or a quantized weight."""
        stored = self._found[name]
        if not stored.adds:
            return torch.zeros(stored.shape)
        weight, transform = self._tensors.read(stored.name), self._names.transform(stored.ours)
        indices = stored.indices
        if not isinstance(weight, Tensor) and (transform is None or hasattr(transform, "index")):
            order = None if transform is None else transform.index(self._decoder)
            try:
                return cut(_ordered(weight, order), indices)
            except ValueError as error:
                log.warning("%s is not kept quantized: %s", stored.name, error)
        if not isinstance(weight, Tensor):
            weight = _widened(weight)
        if isinstance(transform, RowOrder):
            order = transform.index(self._decoder)
            return cut(weight, (order[indices[0]], *indices[1:]))
        return cut(weight if transform is None else transform(weight, self._decoder), indices)

    def prefetch(self, name: str) -> None:
        """Begin to read what holds a tensor of the rank from the disk."""
        prefetch(self._tensors, self._found[name].name)

    def release(self, name: str) -> None:
        """Give memory of mapped files back to the system."""
        self._tensors.release(self._found[name].name)


def names_here(whole: nn.Module, own: Iterable[str]) -> dict[str, str]:
    """The rank's names of parameters by those of the whole model. A matrix that several blocks share has the name of
    the first of these, which another stage may have.
    """
    names = {id(parameter): name for name, parameter in whole.named_parameters()}
    found: dict[str, str] = {}
    for name in own:
        path, _, leaf = name.rpartition(".")
        found[names[id(getattr(whole.get_submodule(path), leaf))]] = name
    return found


def _ordered(weight: Any, order: Tensor | None) -> Any:
    if order is None:
        return weight
    return [matrix.rows(order) for matrix in weight] if isinstance(weight, list | tuple) else weight.rows(order)


def _widened(weight: Any) -> Tensor:
    if isinstance(weight, list | tuple):
        return torch.stack([matrix.dequantized() for matrix in weight])
    widened: Tensor = weight.dequantized()
    return widened


def own_names_table(names: WeightsMapper) -> WeightsMapper:
    """The table for `CutFiles`, whose tensors have Quire's names already."""
    return WeightsMapper(zeros=names.zeros)
