"""Copies checkpoint tensors to the parameters of a model: whole parameters, or slices of fused ones; strictly.

The caller reads the checkpoint and passes its tensors one by one:

    loader = CheckpointLoader(model, decoder, names)
    for name in file:
        if loader.needs(name):
            loader.put(name, tensor)
    loader.finish()
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from quire.errors import CheckpointError
from quire_models.loading.weight_names import RowOrder

if TYPE_CHECKING:
    from quire_models.loading.weight_names import WeightsMapper
    from quire_models.parts.decoder import Decoder


@dataclass(frozen=True)
class ParameterSlice:
    """Where a tensor goes: a parameter, and an index into it (empty: all of it)."""

    parameter: str
    index: tuple[int | slice, ...] = ()


@runtime_checkable
class FusedModule(Protocol):
    """A module with a parameter that is filled from several checkpoint tensors."""

    def parameter_slices(self, path: str) -> Iterable[tuple[str, ParameterSlice]]:
        """Names and slices of the fused parts. path: the module's own path in the model."""
        ...


def parameter_slices(model: nn.Module) -> dict[str, ParameterSlice]:
    """Every name that a checkpoint tensor may have after renaming, and where it goes."""
    found = {name: ParameterSlice(name) for name, _ in model.named_parameters()}
    for path, module in model.named_modules():
        if isinstance(module, FusedModule):
            found.update((name, slice_) for name, slice_ in module.parameter_slices(path) if slice_.parameter in found)
    return found


class CheckpointLoader:
    """Copies the tensors of one checkpoint, in any order, to the parameters.

    Raises CheckpointError, naming the tensor, for one that is unknown, has the wrong shape or occurs twice, and
    at the end for a parameter that is not completely filled. Not thread-safe.
    """

    def __init__(self, model: nn.Module, decoder: Decoder, names: WeightsMapper) -> None:
        self._model, self._decoder, self._names = model, decoder, names
        self._parameters = dict(model.named_parameters())
        self._slices = parameter_slices(model)
        self._sizes = {name: parameter.numel() for name, parameter in self._parameters.items()}
        self._filled: dict[str, int] = dict.fromkeys(self._parameters, 0)
        self._quantizable = _quantizable(model)
        self._came_from: dict[str, str] = {}

    def needs(self, name: str) -> bool:
        """Whether to read the checkpoint tensor: not for ignored tensors, nor for the head if it is tied."""
        tied_copy = self._decoder.tied and self._names.rename(name) == "head.weight"
        return not tied_copy and not self._names.ignores(name)

    def target(self, name: str) -> tuple[Tensor, str]:
        """The view of a parameter that the checkpoint tensor `name` fills, and its name in Quire."""
        ours = self._names.rename(name)
        slice_ = self._slices.get(ours)
        if slice_ is None:
            raise CheckpointError(
                f"The checkpoint has a tensor {name!r} for which the model has no parameter (it would be {ours!r}). "
                "Either its config.json names another architecture, or the checkpoint has additional tensors."
            )
        return self._parameters[slice_.parameter].data[slice_.index], ours

    def put(self, name: str, weight: Any) -> None:
        """Store one checkpoint tensor: copy it (any dtype, any device) to its parameter, or give it, quantized as
        `quire.records.CheckpointFormat.read` returns it, to the module of the parameter.
        """
        ours = self._names.rename(name)
        if ours in self._came_from:
            raise CheckpointError(f"The checkpoint has both {self._came_from[ours]!r} and {name!r} for {ours!r}.")
        view, _ = self.target(name)
        parameter = self._slices[ours].parameter
        if self._filled[parameter] + view.numel() > self._sizes[parameter]:
            raise CheckpointError(f"The checkpoint has both a fused tensor and its parts for {parameter!r}: {name!r}.")
        size = view.numel()  # before a module empties the parameter
        if isinstance(weight, Tensor) or not self._put_quantized(ours, name, weight, view.shape):
            self._copy(ours, name, weight if isinstance(weight, Tensor) else _widened(weight, view.dtype), view)
        self._came_from[ours] = name
        self._filled[parameter] += size

    def _copy(self, ours: str, name: str, tensor: Tensor, view: Tensor) -> None:
        transform = self._names.transform(ours)
        tensor = tensor if transform is None else transform(tensor, self._decoder)
        _check_shape(name, tensor.shape, view.shape)
        with torch.no_grad():
            view.copy_(tensor)

    def _put_quantized(self, ours: str, name: str, weight: Any, shape: torch.Size) -> bool:
        """Give a quantized weight to the module of its parameter; False if it must be widened."""
        slice_, transform = self._slices[ours], self._names.transform(ours)
        module = self._quantizable.get(slice_.parameter)
        if module is None or not (transform is None or isinstance(transform, RowOrder)):
            return False
        leaf = slice_.parameter.rpartition(".")[2]
        if isinstance(weight, Sequence):  # one matrix for each expert
            _check_shape(name, torch.Size([len(weight), *weight[0].shape]), shape)
            return all([module.put_quantized(leaf, (i, *slice_.index), matrix) for i, matrix in enumerate(weight)])
        ordered = weight if transform is None else weight.rows(transform.index(self._decoder))
        _check_shape(name, ordered.shape, shape)
        return module.put_quantized(leaf, slice_.index, ordered)

    def absent_slices(self, present: Container[str]) -> Iterator[tuple[ParameterSlice, Tensor]]:
        """Slices and views that are zero because the checkpoint omits them. present: Quire names of its tensors."""
        for ours, slice_ in self._slices.items():
            if self._names.is_optional(ours) and ours not in present and slice_.parameter not in present:
                yield slice_, self._parameters[slice_.parameter].data[slice_.index]

    def finish(self) -> None:
        """Check that nothing is missing, and let the modules process their weights."""
        for slice_, view in self.absent_slices(self._came_from):
            view.zero_()
            self._filled[slice_.parameter] += view.numel()
        missing = [self._describe(name) for name in self._parameters if not self._is_filled(name)]
        if missing:
            more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
            raise CheckpointError(f"The checkpoint lacks tensors for {', '.join(missing[:8])}{more}.")
        process_weights(self._model)

    def _is_filled(self, parameter: str) -> bool:
        return self._filled[parameter] == self._sizes[parameter]

    def _describe(self, parameter: str) -> str:
        slices = [ours for ours, slice_ in self._slices.items() if slice_.parameter == parameter and slice_.index]
        absent = [o for o in slices if o not in self._came_from and not self._names.is_optional(o)]
        return absent[0] if self._filled[parameter] and absent else parameter


@runtime_checkable
class QuantizableModule(Protocol):
    """A module that can hold its matrices quantized as the checkpoint has them."""

    def put_quantized(self, parameter: str, index: tuple[int | slice, ...], matrix: Any) -> bool:
        """Take a matrix in place of a parameter, or of the part of it at `index`; False if it must be widened."""
        ...


def _quantizable(model: nn.Module) -> dict[str, QuantizableModule]:
    """The module that takes quantized matrices for each parameter; of a tied table and head the head, by the name of
    the table's parameter.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found: dict[str, QuantizableModule] = {}
    for module in model.modules():
        if isinstance(module, QuantizableModule) and isinstance(module, nn.Module):
            found.update((names[id(parameter)], module) for parameter in module.parameters(recurse=False))
    return found


def _check_shape(name: str, shape: torch.Size, expected: torch.Size) -> None:
    if shape != expected:
        raise CheckpointError(
            f"Tensor {name!r} of the checkpoint has shape {list(shape)}; by config.json it should be {list(expected)}."
        )


def _widened(weight: Any, dtype: torch.dtype) -> Tensor:
    """A quantized weight, or one for each expert, in the model's data type."""
    if isinstance(weight, Sequence):
        return torch.stack([matrix.dequantized(dtype) for matrix in weight])
    widened: Tensor = weight.dequantized(dtype)
    return widened


@runtime_checkable
class WeightsPostProcessor(Protocol):
    """A module that derives data from its weights, such as a packed matrix or a norm's weight plus one."""

    def process_weights(self) -> None:
        """Called after the weights have changed."""
        ...


def process_weights(model: nn.Module) -> None:
    """Let every module process its weights; needed whenever weights were written."""
    for module in model.modules():
        if isinstance(module, WeightsPostProcessor):
            module.process_weights()


def load_state_dict_into(
    model: nn.Module, decoder: Decoder, names: WeightsMapper, state_dict: Mapping[str, Tensor]
) -> None:
    """Fill a model from tensors in memory. Raises CheckpointError as `CheckpointLoader` does."""
    loader = CheckpointLoader(model, decoder, names)
    for name, tensor in state_dict.items():
        if loader.needs(name):
            loader.put(name, tensor)
    loader.finish()
