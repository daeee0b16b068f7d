"""The check of quantized checkpoint formats accepts the bundled ones, and names the fault of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from compressed_checkpoints import compressed, scheme
from quantized_tensors import Stored, awq_stored, bnb4_stored, bnb8_stored, fp8_stored, gptq_stored, mxfp4_stored

from quire.hooks.registry import load
from quire.records import Quantization, StoredMatrix
from quire_testing import check_checkpoint_format

GROUPED = {"strategy": "group", "group_size": 32}
STORED: list[Callable[[], Stored]] = [
    gptq_stored,
    awq_stored,
    fp8_stored,
    mxfp4_stored,
    bnb8_stored,
    lambda: bnb4_stored(nested=True),
    lambda: compressed(scheme(symmetric=False, **GROUPED)),
]


def check(record: Quantization, stored: Stored) -> None:
    check_checkpoint_format(record, stored.config, stored.tensors, stored.weights)


def gptq() -> Quantization:
    return load().by_hook("quire_quantizations")["gptq"]


@pytest.mark.parametrize("made", STORED)
def test_the_bundled_formats_pass(made: Callable[[], Stored]) -> None:
    torch.manual_seed(0)
    stored = made()
    check(load().by_hook("quire_quantizations")[stored.config["quant_method"]], stored)


class Changed:
    """A format that is another one but for one fault."""

    def __init__(self, config: Mapping[str, Any], fault: str) -> None:
        found = gptq().checkpoint
        assert found is not None
        self._format, self._fault = found(config), fault

    def matrices(self, shapes: Any, read: Any) -> Mapping[str, StoredMatrix]:
        if self._fault == "crash" and "a.b.scales" not in shapes:
            raise KeyError("a.b.scales")
        found = self._format.matrices(shapes, read)
        if self._fault == "unknown":
            return {name: replace(m, tensors={**m.tensors, "x": "missing"}) for name, m in found.items()}
        return {} if self._fault == "none" else found

    def read(self, name: str, stored: StoredMatrix, tensors: Any) -> Any:
        if self._fault == "nan":
            tensors = {**tensors, "scales": tensors["scales"].nan_to_num(1.0)}
        if self._fault == "changes":
            tensors["scales"].mul_(1.01)
        matrix = self._format.read(name, stored, tensors)
        if self._fault == "value":
            return replace(matrix, scales=matrix.scales * 1.01)
        if self._fault == "bits":
            return replace(matrix, bits=3)
        return [matrix] if self._fault == "list" else matrix


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("none", r"The quantized weights are \[\], not \['a.b.weight'\]"),
        ("unknown", r"tensors that the checkpoint does not have: \['missing'\]"),
        ("value", "a.b.weight dequantized: off by"),
        ("bits", "a code has more than 3 bits"),
        ("list", "must return a list for experts"),
        ("changes", "dequantized: off by|Reading changed"),
        ("nan", "a.b.scales full of NaN is read as if it were whole"),
        ("crash", "without a.b.scales raises KeyError"),
    ],
)
def test_a_faulty_format_is_noticed(fault: str, sentence: str) -> None:
    torch.manual_seed(0)
    record = Quantization("gptq", checkpoint=lambda config: Changed(config, fault))
    with pytest.raises(AssertionError, match=sentence):
        check(record, gptq_stored())


def test_a_quantization_without_checkpoints_is_named() -> None:
    with pytest.raises(AssertionError, match="made reads no checkpoints"):
        check(Quantization("made", linear=lambda ops, options: None), gptq_stored())
