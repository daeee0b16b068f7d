"""Matrices that are packed some rows at a time are the same as those that are packed whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quire_kernels.cpu.build import BuildError
from quire_kernels.cpu.implementations import compiled
from quire_kernels.cpu.linear import quantized_packing as cpu_quantized
from quire_kernels.cpu.ops import CpuOps
from quire_kernels.quantized import QuantizedMatrix, joined
from quire_kernels.quantized_rows import QuantizedRows, as_slice, joined_rows


def drawn(outputs: int, inputs: int = 96, bits: int = 4, offsets: bool = False) -> QuantizedMatrix:
    generator = torch.Generator().manual_seed(outputs)
    codes = torch.randint(0, 1 << bits, (outputs, inputs), generator=generator).to(torch.uint8)
    scales = torch.randn(outputs, inputs // 32, generator=generator)
    more = {"offsets": scales.flip(0).clone()} if offsets else {"zero": 1 << (bits - 1)}
    return QuantizedMatrix(codes, scales, bits, 32, **more)


def in_rows(matrix: QuantizedMatrix) -> QuantizedRows:
    return QuantizedRows(matrix.shape, lambda ids: matrix.rows(as_slice(ids)))


@pytest.fixture
def cpp(monkeypatch: pytest.MonkeyPatch) -> CpuOps:
    monkeypatch.setattr(cpu_quantized, "CODES_AT_ONCE", 96 * 32)  # one panel
    try:
        return CpuOps(compiled())
    except BuildError:
        pytest.skip("there are no compiled operations")


@pytest.mark.parametrize("outputs", [1, 32, 100, 130])
@pytest.mark.parametrize("options", [{}, {"gated": True}, {"activation_bits": 16}])
@pytest.mark.parametrize("bits", [4, 6, 8])
def test_rows_are_packed_as_the_whole_is(cpp: CpuOps, outputs: int, options: dict[str, Any], bits: int) -> None:
    for offsets in (False, True):
        matrix = drawn(outputs, bits=bits, offsets=offsets)
        x = torch.randn(3, 96, generator=torch.Generator().manual_seed(0))
        whole, rows = (one.bind(cpp, None, torch.float32, **options) for one in (matrix, in_rows(matrix)))
        assert torch.equal(whole(x), rows(x))
        assert torch.equal(whole.unpacked(), rows.unpacked())


def test_joined_rows_are_the_rows_of_the_joined_matrix() -> None:
    parts = [drawn(40), drawn(33, bits=6), drawn(20, bits=3, offsets=True)]
    expected, found = joined(parts), joined_rows([in_rows(part) for part in parts])
    assert expected is not None
    assert found is not None
    ids = torch.tensor([80, 3, 50, 41, 0, 92])
    assert torch.equal(found.read(ids).dequantized(), expected.rows(ids).dequantized())
    assert torch.equal(found.dequantized(), expected.dequantized())
    assert torch.equal(found.rows(slice(30, 60)).whole().dequantized(), expected.rows(slice(30, 60)).dequantized())


def test_rows_that_do_not_make_a_matrix_are_refused(cpp: CpuOps) -> None:
    matrix = drawn(100)
    matrix.scales[70] = torch.inf
    with pytest.raises(ValueError, match="not all finite"):
        in_rows(matrix).bind(cpp, None, torch.float32)
