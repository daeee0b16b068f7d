"""Conformance of quantized checkpoint formats: what is read stands for the weights, and damaged tensors are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.errors import CheckpointError
from quire.records import CheckpointFormat, Quantization, StoredMatrix
from quire_kernels.quantized import QuantizedMatrix
from quire_kernels.select import reference
from quire_testing.ops.quantization import compare
from quire_testing.require import require

ROUNDED = 0.05
"""The largest error of products that round their input to 8 bits, relative to the largest value."""


def check_checkpoint_format(
    record: Quantization,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    *,
    tolerance: float = 1e-5,
    ops: Any = None,
) -> None:
    """A small checkpoint is read into its weights, products and rows are right, and damaged tensors are refused.

    config: its `quantization_config`. tensors: all of its tensors. weights: the quantized weights dequantized, by name,
    [outputs, inputs] or [experts, outputs, inputs], float32. tolerance: the largest error, relative to the largest
    value. ops: the operations to choose from, a `quire_kernels.select.Ops`; by default the reference implementations.
    """
    require(record.checkpoint is not None, f"{record.name} reads no checkpoints.")
    assert record.checkpoint is not None
    stored_as, originals = record.checkpoint(config), {name: tensor.clone() for name, tensor in tensors.items()}
    matrices = _matrices(stored_as, tensors)
    require(matrices.keys() == weights.keys(), f"The quantized weights are {sorted(matrices)}, not {sorted(weights)}.")
    _check_names(matrices, tensors)
    for name, stored in matrices.items():
        weight = weights[name]
        require(tuple(stored.shape) == tuple(weight.shape), f"{name}: shape {stored.shape}, not {tuple(weight.shape)}.")
        read = stored_as.read(name, stored, _parts(stored, tensors))
        is_stacked = weight.dim() == 3
        require(
            isinstance(read, Sequence) == is_stacked, f"{name}: `read` must return a list for experts, and only then."
        )
        for matrix, expected in zip(read, weight, strict=True) if is_stacked else [(read, weight)]:
            _check_matrix(name, matrix, expected, tolerance, ops or reference())
    for name, tensor in tensors.items():
        require(_same(tensor, originals[name]), f"Reading changed the tensor {name}.")
    _check_damage(stored_as, tensors)


def _matrices(stored_as: CheckpointFormat, tensors: Mapping[str, Tensor]) -> Mapping[str, StoredMatrix]:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return stored_as.matrices(shapes, tensors.__getitem__)


def _parts(stored: StoredMatrix, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {part: tensors[name] for part, name in stored.tensors.items()}


def _check_names(matrices: Mapping[str, StoredMatrix], tensors: Mapping[str, Tensor]) -> None:
    used = [name for stored in matrices.values() for name in stored.tensors.values()]
    unknown = sorted(set(used) - tensors.keys())
    require(not unknown, f"`matrices` names tensors that the checkpoint does not have: {unknown}.")
    twice = sorted({name for name in used if used.count(name) > 1})
    require(not twice, f"`matrices` gives the same tensor to several weights: {twice}.")


def _check_matrix(name: str, matrix: Any, weight: Tensor, tolerance: float, ops: Any) -> None:
    if isinstance(matrix, Tensor):
        compare(matrix.float(), weight, f"{name} as it was read", tolerance)
        return
    if isinstance(matrix, QuantizedMatrix):
        problem = matrix.problem()
        require(problem is None, f"{name}: {problem}.")
    require(tuple(matrix.shape) == tuple(weight.shape), f"{name}: the matrix has shape {tuple(matrix.shape)}.")
    compare(matrix.dequantized(torch.float32), weight, f"{name} dequantized", tolerance)
    order = torch.arange(len(weight) - 1, -1, -2)
    compare(matrix.rows(order).dequantized(torch.float32), weight[order], f"{name}: its rows", tolerance)
    generator = torch.Generator().manual_seed(0)
    x, bias = torch.randn(9, weight.shape[1], generator=generator), torch.randn(len(weight), generator=generator)
    for added in (None, bias):
        product = matrix.bind(ops, added, torch.float32, False, 16)
        compare(product(x), F.linear(x, weight, added), f"{name}: products", max(tolerance, 1e-5))
        alone = torch.cat([product(row[None]) for row in x])
        compare(alone, product(x), f"{name}: products of a row alone and of the row among others", 1e-3)
        rounded = matrix.bind(ops, added, torch.float32, False, 8)
        compare(rounded(x), F.linear(x, weight, added), f"{name}: products with an input of 8 bits", ROUNDED)
    if hasattr(product, "unpacked"):
        compare(product.unpacked(order), weight[order], f"{name}: the unpacked matrix", tolerance)


def _check_damage(stored_as: CheckpointFormat, tensors: Mapping[str, Tensor]) -> None:
    """No tensor may be missing, short, or hold NaN without a CheckpointError, unless it makes another weight then."""
    whole = {name: tuple(stored.shape) for name, stored in _matrices(stored_as, tensors).items()}
    used = [name for stored in _matrices(stored_as, tensors).values() for name in stored.tensors.values()]
    for name in used:
        rest = {other: tensor for other, tensor in tensors.items() if other != name}
        _read_all(stored_as, rest, f"without {name}")
        for what, damaged in _damaged(tensors[name]):
            shapes = _read_all(stored_as, {**rest, name: damaged}, f"with {name} {what}")
            if what != "transposed":  # a tensor of bytes may be a row as well as a column
                require(shapes != whole, f"{name} {what} is read as if it were whole.")


def _damaged(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    if tensor.dim() and len(tensor) > 1:
        yield "cut in half", tensor[: len(tensor) // 2]
    if tensor.dim() == 2 and tensor.shape[0] != tensor.shape[1]:
        yield "transposed", tensor.T
    if tensor.is_floating_point() and tensor.element_size() > 1:
        yield "full of NaN", torch.full_like(tensor, float("nan"))


def _read_all(stored_as: CheckpointFormat, tensors: Mapping[str, Tensor], what: str) -> dict[str, Any] | None:
    """The shapes of all weights; None if the format refuses the checkpoint as it should."""
    try:
        matrices = _matrices(stored_as, tensors)
        for name, stored in matrices.items():
            stored_as.read(name, stored, _parts(stored, tensors))
    except CheckpointError:
        return None
    except Exception as error:
        raise AssertionError(f"A checkpoint {what} raises {error!r:.200}, not CheckpointError.") from error
    return {name: tuple(stored.shape) for name, stored in matrices.items()}


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
