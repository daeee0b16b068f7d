"""Conformance of quantizations: products with a quantized matrix against products with the matrix itself."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.records import OpQuery, Quantization, QuantizationOptions
from quire_kernels.select import reference
from quire_testing.require import require

SHAPES = ((48, 64), (33, 65), (96, 32))
"""Outputs and inputs of the matrices."""


def check_quantization(
    record: Quantization, *, tolerance: float = 0.05, dtype: str = "float32", device: str = "cpu", ops: Any = None
) -> None:
    """Products are close to those of the unquantized matrix, and a row does not depend on the rows beside it.

    tolerance: the largest error, relative to the largest value of the exact product. ops: the operations to choose
    from, a `quire_kernels.select.Ops`; by default the reference implementations.
    """
    reason = record.supports(OpQuery(torch.device(device).type, dtype))
    require(reason is None, f"{record.name} does not support {dtype} on {device}: {reason}")
    require(record.linear is not None, f"{record.name} cannot be applied when a model is loaded.")
    assert record.linear is not None
    bind = record.linear(ops or reference(), QuantizationOptions())
    generator = torch.Generator().manual_seed(0)
    for outputs, inputs in SHAPES:
        drawn = [torch.randn(shape, generator=generator) for shape in ((outputs, inputs), (outputs,), (9, inputs))]
        weight, bias, x = (tensor.to(device, getattr(torch, dtype)) for tensor in drawn)
        for added in (None, bias):
            original = weight.clone()
            product = bind(weight, added)
            compare(product(x), F.linear(x, weight, added), f"products of [{outputs}, {inputs}]", tolerance)
            require(torch.equal(weight, original), "Binding a matrix changed it.")
            alone = torch.cat([product(row[None]) for row in x])
            compare(alone, product(x), "products of a row alone and of the row among others", 1e-3)
            require(torch.equal(product(x), product(x)), "The same product has another result the second time.")
            if hasattr(product, "unpacked"):
                rows = torch.arange(outputs, device=device)
                compare(product.unpacked(rows), weight[rows], "the unpacked matrix", tolerance)


def compare(found: Tensor, expected: Tensor, what: str, tolerance: float) -> None:
    """Raise AssertionError unless shapes and data types are equal, and errors at most `tolerance` of the largest."""
    require(found.shape == expected.shape, f"{what}: shape {tuple(found.shape)}, not {tuple(expected.shape)}.")
    require(found.dtype == expected.dtype, f"{what}: {found.dtype}, not {expected.dtype}.")
    error = ((found.float() - expected.float()).abs().max() / expected.abs().max().float()).item()
    require(error <= tolerance, f"{what}: off by {error:.2g} of the largest value, more than {tolerance:.2g}.")
