"""Copies checkpoint tensors to the parameters of a model: whole parameters, or slices of fused ones; strictly.

The caller reads the checkpoint and passes its tensors one by one:

    loader = CheckpointLoader(model, decoder, names)
    for name in file:
        if loader.needs(name):
            loader.put(name, tensor)
    loader.finish()
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from quire.errors import CheckpointError

if TYPE_CHECKING:
    from quire_models.loading.weight_names import WeightsMapper
    from quire_models.model_part import ModelPart


@dataclass(frozen=True)
class ParameterSlice:
    """Where a tensor goes: a parameter, and an index into it (empty: all of it)."""

    parameter: str
    index: tuple[int | slice, ...] = ()


def parameter_slices(model: nn.Module) -> dict[str, ParameterSlice]:
    """Every name that a checkpoint tensor may have after renaming, and where it goes.

    A module with a parameter that is filled from several tensors has a method `parameter_slices(path)`: from its path
    in the model to names and slices of the fused parts.
    """
    found = {name: ParameterSlice(name) for name, _ in model.named_parameters()}
    for path, module in model.named_modules():
        if hasattr(module, "parameter_slices"):
            found.update((name, slice_) for name, slice_ in module.parameter_slices(path) if slice_.parameter in found)
    return found


class _Part(NamedTuple):
    """A tensor of the checkpoint: its name there, and the parameter with the view that it fills."""

    name: str
    parameter: str
    view: Tensor
    tensor: Tensor


class CheckpointLoader:
    """Copies the tensors of one checkpoint, in any order, to the parameters.

    Modules that pack their matrices do so as soon as their parameters are complete, so that these are freed before the
    next are filled, or as soon as all parts are there, if these need not be copied to a parameter; the others process
    their weights at the end.
    Raises CheckpointError, naming the tensor, for one that is unknown, has the wrong shape or occurs twice, and
    at the end for a parameter that is not completely filled. Not thread-safe.
    """

    def __init__(self, model: nn.Module, decoder: ModelPart, names: WeightsMapper) -> None:
        self._model, self._decoder, self._names = model, decoder, names
        self._parameters = dict(model.named_parameters())
        self._slices = parameter_slices(model)
        self._sizes = {name: parameter.numel() for name, parameter in self._parameters.items()}
        self._filled: dict[str, int] = dict.fromkeys(self._parameters, 0)
        self._quantizable = _quantizable(model)
        self._packing = _packing(self._quantizable)
        self._parts: dict[str, dict[int, _Part]] = {}
        self._processed: set[object] = set()
        self._came_from: dict[str, str] = {}
        self._held: set[str] = set()

    def needs(self, name: str) -> bool:
        """Whether to read a tensor: not ignored ones, those that `hold` made needless, and the head if it is tied."""
        ours = self._names.rename(name)
        slice_ = self._slices.get(ours) if self._held else None
        is_held = slice_ is not None and slice_.parameter in self._held
        return not is_held and not (self._decoder.tied and ours == "head.weight") and not self._names.ignores(name)

    def hold(self, module: nn.Module) -> None:
        """Do without the tensors of a module's parameters that packed matrices, which it has, took the place of."""
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        held = {names[id(p)] for p in module.parameters(recurse=False) if not p.numel()}
        self._held |= held
        self._processed.add(module)
        for name in held:
            self._filled[name] = self._sizes[name]
        for parameter in module.parameters(recurse=False):
            self._packing.pop(names[id(parameter)], None)  # it is packed already; what is left are biases

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

    def put(self, name: str, weight: Any) -> Sequence[str]:
        """Store one checkpoint tensor: copy it (any dtype, any device) to its parameter, or give it, quantized as
        `quire.records.CheckpointFormat.read` returns it, to the module of the parameter.

        Returns the names of tensors whose memory is needed no more: a part of a matrix that is packed without a copy is
        needed until all parts are there.
        """
        ours = self._names.rename(name)
        if ours in self._came_from:
            raise CheckpointError(f"The checkpoint has both {self._came_from[ours]!r} and {name!r} for {ours!r}.")
        view, _ = self.target(name)
        parameter = self._slices[ours].parameter
        size = view.numel()  # 0 if a module has emptied the parameter
        if self._filled[parameter] + max(size, 1) > self._sizes[parameter] > 0:
            raise CheckpointError(f"The checkpoint has both a fused tensor and its parts for {parameter!r}: {name!r}.")
        self._came_from[ours] = name
        self._filled[parameter] += size
        if isinstance(weight, Tensor) or not self._put_quantized(ours, name, weight, view.shape):
            tensor = weight if isinstance(weight, Tensor) else _widened(weight, view.dtype)
            transform = self._names.transform(ours)
            tensor = tensor if transform is None else transform(tensor, self._decoder)
            _check_shape(name, tensor.shape, view.shape)
            return self._store(_Part(name, parameter, view, tensor))
        return (name,)

    def _store(self, part: _Part) -> Sequence[str]:
        """Copy or keep a part of a parameter, and pack the matrix if it is complete now. Returns what `put` does."""
        module, names = self._packing.get(part.parameter, (None, ()))
        complete = module if all(map(self._is_filled, names)) else None
        if module is not None and self._takes_part(module, part):
            self._parts.setdefault(part.parameter, {})[int(part.view.storage_offset())] = part
            return () if complete is None else self._pack(complete, names)
        if complete is not None and self._pack_uncopied(complete, self._parameters[part.parameter], part.tensor):
            return (part.name,)
        with torch.no_grad():
            part.view.copy_(part.tensor)
        return (part.name,) if complete is None else (part.name, *self._pack(complete, names))

    def _takes_part(self, module: PackingModule, part: _Part) -> bool:
        """Whether a tensor is rows of a matrix that the module can pack from where they are."""
        whole = self._parameters[part.parameter].data
        is_rows = whole.dim() == 2 and part.view.shape[1:] == whole.shape[1:]
        return is_rows and getattr(module, "takes_parts", False) and _form(part.tensor) == _form(part.view)

    def _pack(self, module: PackingModule, names: Sequence[str]) -> Sequence[str]:
        """Pack the complete matrix of a module; returns the names of the tensors that were kept for it."""
        kept = [self._parts.pop(name) for name in names if name in self._parts]
        used = [part for parts in kept for _, part in sorted(parts.items())]
        if used and sum(map(len, (part.view for part in used))) == len(self._parameters[used[0].parameter]):
            module.bind_parts([part.tensor for part in used])
            self._processed.add(module)
        else:
            with torch.no_grad():
                for part in used:
                    part.view.copy_(part.tensor)
            self._process(module)
        return [part.name for part in used]

    def _pack_uncopied(self, module: PackingModule, parameter: nn.Parameter, tensor: Tensor) -> bool:
        """Pack a tensor of a file in place of a whole parameter; False if the module needs a copy of it."""
        memory = parameter.data
        if module.keeps_weights or memory.dim() < 2 or _form(tensor) != _form(memory):
            return False  # a bias is kept, so it must be copied
        parameter.data = tensor
        self._process(module)
        if parameter.numel():
            parameter.data = memory
        return not parameter.numel()

    def _process(self, module: PackingModule) -> None:
        module.process_weights()
        self._processed.add(module)

    def _put_quantized(self, ours: str, name: str, weight: Any, shape: torch.Size) -> bool:
        """Give a quantized weight to the module of its parameter; False if it must be widened."""
        slice_, transform = self._slices[ours], self._names.transform(ours)
        module = self._quantizable.get(slice_.parameter)
        if module is None or not (transform is None or hasattr(transform, "index")):
            return False
        order = None if transform is None else transform.index(self._decoder)
        leaf = slice_.parameter.rpartition(".")[2]
        if isinstance(weight, Sequence):  # one matrix for each expert
            _check_shape(name, torch.Size([len(weight), *weight[0].shape]), shape)
            pieces = [matrix if order is None else matrix.rows(order) for matrix in weight]
            return all([module.put_quantized(leaf, (i, *slice_.index), matrix) for i, matrix in enumerate(pieces)])
        ordered = weight if order is None else weight.rows(order)
        _check_shape(name, ordered.shape, shape)
        return module.put_quantized(leaf, slice_.index, ordered)

    def absent_slices(self, present: Container[str]) -> Iterator[tuple[ParameterSlice, Tensor]]:
        """Slices and views that are zero because the checkpoint omits them. present: Quire names of its tensors."""
        for ours, slice_ in self._slices.items():
            if slice_.parameter in self._held:
                continue
            if self._names.is_optional(ours) and ours not in present and slice_.parameter not in present:
                yield slice_, self._parameters[slice_.parameter].data[slice_.index]

    def finish(self) -> None:
        """Check that nothing is missing, and let the modules process their weights."""
        for slice_, view in self.absent_slices(self._came_from):
            view.zero_()
            self._filled[slice_.parameter] += view.numel()
        for module, names in [self._packing[parameter] for parameter in self._parts]:
            if all(map(self._is_filled, names)):
                self._pack(module, names)
        missing = [self._describe(name) for name in self._parameters if not self._is_filled(name)]
        if missing:
            more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
            raise CheckpointError(f"The checkpoint lacks tensors for {', '.join(missing[:8])}{more}.")
        process_weights(self._model, self._processed)

    def _is_filled(self, parameter: str) -> bool:
        return self._filled[parameter] == self._sizes[parameter]

    def _describe(self, parameter: str) -> str:
        slices = [ours for ours, slice_ in self._slices.items() if slice_.parameter == parameter and slice_.index]
        absent = [o for o in slices if o not in self._came_from and not self._names.is_optional(o)]
        return absent[0] if self._filled[parameter] and absent else parameter


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
    found: dict[str, Any] = {}
    for module in model.modules():
        if hasattr(module, "put_quantized"):
            found.update((names[id(parameter)], module) for parameter in module.parameters(recurse=False))
    return found


class PackingModule(Protocol):
    """A module that processes its weights into matrices that its ops keep, and then empties the parameters.

    keeps_weights: it does not empty them. Optional: takes_parts, whether it can also bind the rows of its only matrix
    where they are, with `bind_parts`.
    """

    keeps_weights: bool

    def process_weights(self) -> None: ...

    def bind_parts(self, parts: Sequence[Tensor]) -> None: ...


def _packing(modules: Mapping[str, Any]) -> dict[str, tuple[PackingModule, list[str]]]:
    """For each parameter of a packing module: the module, and the names of all its parameters."""
    names: dict[Any, list[str]] = {}
    for name, module in modules.items():
        if hasattr(module, "keeps_weights"):
            names.setdefault(module, []).append(name)
    return {name: (module, own) for module, own in names.items() for name in own}


def _form(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.dtype, tensor.device


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


def process_weights(model: nn.Module, processed: Container[object] = ()) -> None:
    """Let every module with a method `process_weights` derive data from its weights, such as a packed matrix or a
    norm's weight plus one; needed whenever weights were written. processed: modules to leave out.
    """
    for module in model.modules():
        process = getattr(module, "process_weights", None)
        if process is not None and module not in processed:
            process()
