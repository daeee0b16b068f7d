"""The weights of a checkpoint in the layout of Quire's model, read from its files when they are needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from quire.errors import CheckpointError
from quire_adapter_tools.base_model import BaseModel
from quire_adapters.target_modules import TargetModules
from quire_models.loading import checkpoint, tensor_files
from quire_models.loading.mapping import ParameterSlice, parameter_slices
from quire_models.loading.weight_names import RowOrder, transpose


class StoredWeights:
    """The checkpoint of a model whose weights are not quantized. files: its tensors.

    Raises CheckpointError if the weights are quantized, or a tensor is missing or does not fit the model.
    """

    def __init__(self, base: BaseModel) -> None:
        if base.files.gguf is not None or checkpoint.quantization_config(base.folder) is not None:
            raise CheckpointError(f"{base.folder} is quantized; use the original, and quantize what you get.")
        self.base, self.files = base, tensor_files.find(base.folder)
        self._slices = parameter_slices(base.module)
        self._names: defaultdict[str, list[str]] = defaultdict(list)
        for name in self.files:
            slice_ = self.slice_of(name)
            if slice_ is not None:
                self._names[slice_.parameter].append(name)
        self._last: tuple[str, Tensor] | None = None

    def slice_of(self, name: str) -> ParameterSlice | None:
        """Where a tensor of the checkpoint goes; None if the model does not use it."""
        return None if self.base.names.ignores(name) else self._slices.get(self.base.names.rename(name))

    def parameter(self, name: str) -> Tensor:
        """A parameter of the model, in the checkpoint's data type."""
        if self._last is None or self._last[0] != name:
            self._last = name, self._read(name)
        return self._last[1]

    def _read(self, parameter: str) -> Tensor:
        names = self._names.get(parameter)
        if not names:
            raise CheckpointError(f"{self.base.folder} has no tensor for {parameter!r}.")
        dtype = self.files.read(names[0]).dtype
        filled = torch.zeros(self.base.module.get_parameter(parameter).shape, dtype=dtype)
        for name in names:
            view = filled[self._slices[self.base.names.rename(name)].index]
            tensor = self.to_ours(name, self.files.read(name))
            if tensor.shape != view.shape:
                raise CheckpointError(
                    f"Tensor {name!r} has shape {list(tensor.shape)}; by config.json it should be {list(view.shape)}."
                )
            view.copy_(tensor)
        return filled

    def to_ours(self, name: str, tensor: Tensor) -> Tensor:
        """A checkpoint's tensor in the layout of the model."""
        transform = self.base.names.transform(self.base.names.rename(name))
        return tensor if transform is None else transform(tensor, self.base.decoder)

    def from_ours(self, name: str, tensor: Tensor) -> Tensor:
        """The inverse of `to_ours`. Raises CheckpointError for a layout without one."""
        transform = self.base.names.transform(self.base.names.rename(name))
        if transform is None:
            return tensor
        if transform is transpose:
            return tensor.T
        if isinstance(transform, RowOrder):
            stored = torch.empty_like(tensor)
            stored[transform.index(self.base.decoder)] = tensor
            return stored
        raise CheckpointError(f"Tensor {name!r} has a layout of its own in the checkpoint and cannot be written.")

    def targets(self) -> TargetModules:
        """The modules that adapters can target; rows of matrices are read from the files."""
        self._fill_vectors()
        targets = TargetModules(self.base.module, self.base.names)
        for path, projection in targets.projections.items():
            parameter = "embed.weight" if path == "head" and self.base.decoder.tied else f"{path}.weight"
            projection.rows = self._reader(parameter)  # type: ignore[method-assign, assignment]
        for path, table in targets.tables.items():
            targets.tables[path] = replace(table, read=self._reader(f"{path}.weight"))
        return targets

    def _reader(self, parameter: str) -> Callable[[Tensor], Tensor]:
        return lambda ids: self.parameter(parameter)[ids]

    def _fill_vectors(self) -> None:
        for name, parameter in list(self.base.module.named_parameters()):
            if parameter.dim() == 1 and name in self._names:
                path, _, leaf = name.rpartition(".")
                owner = self.base.module.get_submodule(path)
                owner.register_parameter(leaf, nn.Parameter(self._read(name), requires_grad=False))
