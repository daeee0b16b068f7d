"""The check of quantizations accepts the bundled one, and names the fault of others."""

from typing import Any

import pytest
import torch.nn.functional as F
from torch import Tensor

from quire.hooks.registry import load
from quire.records import Quantization
from quire_testing import check_quantization


def bound(weight: Tensor, bias: Tensor | None) -> Any:
    return lambda x: F.linear(x, weight, bias)


def coarse(weight: Tensor, bias: Tensor | None) -> Any:
    return bound(weight.sign(), bias)


def without_bias(weight: Tensor, bias: Tensor | None) -> Any:
    return bound(weight, None)


def scaled_by_the_batch(weight: Tensor, bias: Tensor | None) -> Any:
    return lambda x: F.linear(x, weight, bias) * (1 + 0.02 * (len(x) > 1))


def in_place(weight: Tensor, bias: Tensor | None) -> Any:
    return bound(weight.mul_(1.0001), bias)


def test_the_bundled_quantization_passes() -> None:
    check_quantization(load().by_hook("quire_quantizations")["int8"])


@pytest.mark.parametrize(
    ("linear", "sentence"),
    [
        (coarse, "off by"),
        (without_bias, "off by"),
        (scaled_by_the_batch, "a row alone and of the row among others"),
        (in_place, "Binding a matrix changed it"),
        (lambda weight, bias: lambda x: F.linear(x, weight, bias).double(), "torch.float64, not torch.float32"),
    ],
)
def test_a_faulty_quantization_is_noticed(linear: Any, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_quantization(Quantization("made", lambda ops, options: linear))


def test_a_device_that_is_not_supported_is_named() -> None:
    with pytest.raises(AssertionError, match="needs a moon"):
        check_quantization(Quantization("made", lambda ops, options: bound, supports=lambda query: "needs a moon"))
