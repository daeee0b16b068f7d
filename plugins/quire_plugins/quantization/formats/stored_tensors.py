"""Finds the tensors of each quantized matrix by the ends of their names, and checks those that are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.plugin import CheckpointError, StoredMatrix
from quire_kernels.quantized import MIN_GROUP

Shape = tuple[int, ...]
ReadTensor = Callable[[str], Tensor]
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
MAX_SCALE = 1e30
"""Products of larger scales with codes may be infinite."""


@dataclass(frozen=True)
class Names:
    """How the tensors of a matrix are named: its module's name and an end.

    main: the part that each matrix has and nothing else. needed: parts without which the main part is useless.
    optional: further parts. Each maps the name of a part to the ends that it may have.
    """

    main: tuple[str, str]
    needed: Mapping[str, Sequence[str]]
    optional: Mapping[str, Sequence[str]]

    def grouped(self, shapes: Mapping[str, Shape]) -> dict[str, dict[str, str]]:
        """The tensors of each matrix by part, by the name of the module. Raises CheckpointError if one is missing."""
        part, end = self.main
        return {
            name.removesuffix(end): {part: name} | self._partners(name, name.removesuffix(end), shapes)
            for name in shapes
            if name.endswith(end)
        }

    def _partners(self, name: str, module: str, shapes: Mapping[str, Shape]) -> dict[str, str]:
        found = {
            part: module + end
            for part, ends in {**self.needed, **self.optional}.items()
            for end in ends
            if module + end in shapes
        }
        for part, ends in self.needed.items():
            if part not in found:
                raise CheckpointError(f"{name}: the checkpoint has no {module}{ends[0]} beside it.")
        return found


def sizes(name: str, shapes: Mapping[str, Shape], count: int) -> Shape:
    """The shape of a tensor. Raises CheckpointError unless it has `count` sizes, none of them 0."""
    if len(shapes[name]) != count or not all(shapes[name]):
        raise CheckpointError(f"{name} has shape {list(shapes[name])}, expected {count} sizes above 0.")
    return shapes[name]


class MatrixTensors:
    """The tensors of one matrix, by part, checked when they are asked for."""

    def __init__(self, stored: StoredMatrix, tensors: Mapping[str, Tensor]) -> None:
        self._names, self._tensors = stored.tensors, tensors

    def has(self, part: str) -> bool:
        return part in self._names

    def error(self, part: str, reason: str) -> CheckpointError:
        """The error for a part, which begins with the name of its tensor."""
        return CheckpointError(f"{self._names[part]} {reason}.")

    def get(self, part: str, dtypes: Sequence[torch.dtype], shape: Shape | None = None) -> Tensor:
        """A tensor of one of these data types and, if it is given, of this shape."""
        tensor = self._tensors[part]
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise self.error(part, "is not a dense tensor")
        if tensor.dtype not in dtypes:
            names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise self.error(part, f"is {str(tensor.dtype).removeprefix('torch.')}, expected {names}")
        if shape is not None and tuple(tensor.shape) != shape:
            raise self.error(part, f"has shape {list(tensor.shape)}, expected {list(shape)}")
        return tensor

    def scales(self, part: str, shape: Shape | None = None, negative: bool = False) -> Tensor:
        """Scales in float32: finite, and not below zero unless `negative`."""
        return self.finite(part, self.get(part, FLOATS, shape).float(), negative)

    def finite(self, part: str, scales: Tensor, negative: bool = False) -> Tensor:
        """These scales, if they are numbers that a scale can be."""
        if not bool((scales.abs() <= MAX_SCALE).all()):
            raise self.error(part, f"has values that are NaN, infinite or above {MAX_SCALE:g}")
        if not negative and bool((scales < 0).any()):
            raise self.error(part, "has scales below zero")
        return scales

    def groups(self, part: str, inputs: int, size: int) -> tuple[int, Tensor]:
        """The group size of a matrix whose scales, in this part, are for runs of `size` inputs, and the run of each
        group: int64 [groups]. The group is the run, or a part of it where runs do not divide the inputs.
        """
        if size >= inputs:
            return inputs, torch.zeros(1, dtype=torch.int64)
        group = math.gcd(inputs, size)
        if group % MIN_GROUP:
            raise self.error(
                part,
                f"has scales for groups of {size} of {inputs} inputs, which are no groups of a multiple of {MIN_GROUP}",
            )
        return group, torch.arange(0, inputs, group) // size


def columns(scales: Tensor, runs: Tensor) -> Tensor:
    """scales [outputs, runs of inputs] -> [outputs, groups], by the result of `MatrixTensors.groups`."""
    if torch.equal(runs, torch.arange(scales.shape[1])):
        return scales.contiguous()
    return scales.index_select(1, runs)


def zero_offsets(zeros: Tensor, scales: Tensor, middle: int) -> tuple[int, Tensor | None]:
    """(zero, offsets) of a `QuantizedMatrix` whose groups have the codes `zeros` [outputs, groups] for zero: one code
    without offsets if all are equal, otherwise `middle` and what is left as offsets.
    """
    least, most = (int(value) for value in zeros.aminmax())
    if least == most and least >= 0:
        return least, None
    return middle, (middle - zeros.to(torch.int16)).float().mul_(scales)


def group_order(parts: MatrixTensors, part: str, inputs: int, run: int) -> Tensor | None:
    """The inputs sorted by their group, int64 [inputs], which the part has for each; None if they are in this order
    already. Raises CheckpointError unless each group has `run` inputs (the last what is left).
    """
    groups, expected = parts.get(part, (torch.int32, torch.int64), (inputs,)).long(), torch.arange(inputs) // run
    if torch.equal(groups, expected) or bool((groups == -1).all()):  # -1: the library's value for "not set"
        return None
    ordered, order = groups.sort(stable=True)
    if int(ordered[0]) < 0 or int(ordered[-1]) > int(expected[-1]):
        raise parts.error(part, f"names groups outside of 0 to {int(expected[-1])}")
    if not torch.equal(ordered, expected):
        raise parts.error(part, f"has groups that are not of {run} inputs each")
    return order
