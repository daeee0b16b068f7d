"""Blocks of every type as a `QuantizedMatrix`, against the package `gguf`."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf_models import SCALES_AT, random_blocks

from quire.errors import CheckpointError
from quire_kernels.quantized import QuantizedMatrix, has_integer_values
from quire_kernels.quantized_rows import QuantizedRows
from quire_models.gguf.file.parts import open_parts
from quire_models.gguf.file.types import OTHER_TYPES, TYPES
from quire_models.gguf.folder import open_tensors
from quire_models.gguf.weights import unpack

ROWS, COLUMNS = 48, 768
"""768: six blocks of 256 in two rows, and rows of 24 blocks of 32."""


def write(path: Path, blocks: np.ndarray, kind: Type, name: str = "blk.0.ffn_up.weight") -> None:
    writer = gguf.GGUFWriter(str(path), "qwen2")
    writer.add_tensor("output_norm.weight", np.ones(8, np.float32))
    writer.add_tensor(name, blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read(path: Path) -> QuantizedMatrix:
    rows = open_tensors(open_parts(path)).read("model.layers.0.mlp.up_proj.weight")
    assert isinstance(rows, QuantizedRows)
    matrix = rows.whole()
    return matrix


@pytest.mark.parametrize("name", SCALES_AT)
@pytest.mark.parametrize("chunk", [unpack.CHUNK, 1000])
def test_a_matrix_is_exactly_what_the_package_dequantizes(tmp_path, monkeypatch, name, chunk):
    monkeypatch.setattr(unpack, "CHUNK", chunk)
    blocks = random_blocks(Type[name], ROWS, COLUMNS)
    write(tmp_path / "model.gguf", blocks, Type[name])
    matrix = read(tmp_path / "model.gguf")
    expected = torch.from_numpy(gguf.quants.dequantize(blocks, Type[name]))
    assert matrix.problem() is None
    assert torch.equal(matrix.dequantized(), expected)
    assert has_integer_values(matrix)


@pytest.mark.parametrize("byte", range(256))
def test_every_byte_of_codes_is_read_as_the_package_reads_it(byte):
    for name, layout in unpack.LAYOUTS.items():
        blocks = np.full((1, gguf.GGML_QUANT_SIZES[Type[name]][1]), byte, np.uint8)
        for start in SCALES_AT[name]:
            blocks[0, start : start + 2] = np.frombuffer(struct.pack("<e", 0.25), np.uint8)
        if name == "MXFP4":
            blocks[0, 0] = byte % 200  # larger exponents overflow in the package
        expected = gguf.quants.dequantize(blocks, Type[name])
        found = unpack.unpacked(blocks, name, expected.shape[1])
        assert torch.equal(found.dequantized(), torch.from_numpy(expected)), name
        assert unpack.unpack_in_numpy(blocks, layout, found) is None
        assert torch.equal(found.dequantized(), torch.from_numpy(expected)), name


def test_sizes_of_types_are_those_of_the_package():
    for kind, found in TYPES.items():
        assert (found.name, (found.elements, found.size)) == (Type(kind).name, gguf.GGML_QUANT_SIZES[Type(kind)])
    for kind, name in OTHER_TYPES.items():
        assert Type(kind).name == name


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_tensors_that_are_not_quantized_are_views_of_the_file(tmp_path, kind):
    values = np.arange(12, dtype=kind).reshape(3, 4)
    write(tmp_path / "model.gguf", values, Type.F32 if kind == np.float32 else Type.F16)
    tensors = open_tensors(open_parts(tmp_path / "model.gguf"))
    found = tensors.read("model.layers.0.mlp.up_proj.weight")
    assert torch.equal(found, torch.from_numpy(values))
    assert found.data_ptr() == tensors.read("model.layers.0.mlp.up_proj.weight").data_ptr()


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "Q6_K", "Q2_K", "IQ4_XS"])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_scale_that_is_not_finite_is_refused(tmp_path, name, number):
    blocks = random_blocks(Type[name], ROWS, COLUMNS)
    start = SCALES_AT[name][-1]
    blocks[3, start : start + 2] = np.frombuffer(struct.pack("<e", number), np.uint8)
    write(tmp_path / "model.gguf", blocks, Type[name])
    with pytest.raises(CheckpointError, match=r"'blk.0.ffn_up.weight' has an? (offset|scale) that is not finite"):
        read(tmp_path / "model.gguf")
