"""The reader of GGUF files: what the package `gguf` writes, and files that lie."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hostile_gguf import damaged, small_file

from quire.errors import CheckpointError
from quire_kernels.quantized_rows import QuantizedRows
from quire_models.gguf.file.parts import models_in, open_parts
from quire_models.gguf.file.reader import open_gguf
from quire_models.gguf.folder import folder_contents, open_tensors

CASES = 2400


@pytest.fixture
def path(tmp_path: Path) -> Path:
    small_file(tmp_path / "model.gguf")
    return tmp_path / "model.gguf"


def plain(value: Any) -> Any:
    return value if isinstance(value, str | bool | int | float) else list(value)


def test_metadata_and_tensors_are_those_that_the_package_reads(path):
    found, expected = open_gguf(path), gguf.GGUFReader(path)
    fields = {key: value.contents() for key, value in expected.fields.items() if not key.startswith("GGUF.")}
    assert found.metadata.keys() == fields.keys()
    for key, value in fields.items():
        assert plain(found.metadata[key]) == (pytest.approx(value) if isinstance(value, float) else value), key
    assert found.metadata["other.bool"] is True
    assert found.metadata["llama.attention.layer_norm_rms_epsilon"] == 1e-5  # the shortest number with these bits
    for mine, theirs in zip(found.tensors, expected.tensors, strict=True):
        assert (mine.name, list(mine.shape)) == (theirs.name, list(reversed(theirs.shape.tolist())))
        assert (mine.type.name, mine.size) == (theirs.tensor_type.name, theirs.n_bytes)
        assert bytes(found.data[mine.start : mine.start + mine.size]) == theirs.data.tobytes()


def test_version_2_is_read_like_version_3(path):
    content = bytearray(path.read_bytes())
    content[4:8] = struct.pack("<I", 2)
    path.write_bytes(content)
    assert len(open_gguf(path).tensors) == 12


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        assert old in content
        return content.replace(old, new, 1)

    return change


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def tensor_info(name: str, dims: list[int], kind: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QI", len(dims), *dims, kind)


NORM = tensor_info("output_norm.weight", [256], 0)
QUERY = tensor_info("blk.0.attn_q.weight", [256, 256], 12)
U8 = text("other.u8") + struct.pack("<IB", 0, 1)
FLOATS = text("other.floats") + struct.pack("<IIQ", 9, 6, 2)
HUGE = struct.pack("<IIQ", 9, 6, 1 << 62)
LIES = {
    "another magic number": (replaced(b"GGUF", b"GGML"), "begins with b'GGML'"),
    "version 1": (replaced(b"GGUF\x03", b"GGUF\x01"), "it has version 1"),
    "big-endian": (replaced(b"GGUF\x03\x00\x00\x00", b"GGUF\x00\x00\x00\x03"), "big-endian"),
    "an empty file": (lambda content: b"", "it has 0 bytes"),
    "four bytes": (lambda content: b"GGUF", "it ends in its version"),
    "many tensors": (lambda c: c[:8] + struct.pack("<Q", 1 << 17) + c[16:], "it claims 131072 tensors"),
    "most tensors": (lambda c: c[:8] + b"\xff" * 8 + c[16:], "it claims 18446744073709551615 tensors"),
    "many keys": (lambda c: c[:16] + b"\xff" * 8 + c[24:], "it claims 18446744073709551615 metadata keys"),
    "an unknown type of value": (replaced(U8, text("other.u8") + struct.pack("<IB", 13, 1)), "unknown type 13"),
    "a boolean of 2": (
        replaced(text("other.bool") + struct.pack("<IB", 7, 1), text("other.bool") + struct.pack("<IB", 7, 2)),
        "boolean 'other.bool' is 2",
    ),
    "a long array": (replaced(FLOATS, text("other.floats") + HUGE), "'other.floats' has 4611686018427387904 elements"),
    "an array of arrays": (
        replaced(FLOATS, text("other.floats") + struct.pack("<IIQ", 9, 9, 2)),
        "'other.floats' has arrays as elements",
    ),
    "a long text": (replaced(text("{{ messages }}"), struct.pack("<Q", 1 << 40) + b"{{ messages }}"), "1099511627776"),
    "a text that is not UTF-8": (replaced(b"{{ messages }}", b"\xff{ messages }}"), "not valid UTF-8"),
    "a key twice": (replaced(text("other.u64"), text("other.f64")), "'other.f64' twice"),
    "a tensor twice": (
        replaced(text("blk.0.attn_k.weight"), text("blk.0.attn_q.weight")),
        "the tensor 'blk.0.attn_q.weight' twice",
    ),
    "no dimensions": (replaced(NORM[:30], NORM[:26] + struct.pack("<I", 0)), "'output_norm.weight' has 0 dimensions"),
    "nine dimensions": (replaced(NORM[:30], NORM[:26] + struct.pack("<I", 9)), "'output_norm.weight' has 9 dimensions"),
    "a dimension of 0": (replaced(NORM, tensor_info("output_norm.weight", [0], 0)), r"has the shape \[0\]"),
    "a huge dimension": (replaced(NORM, tensor_info("output_norm.weight", [1 << 62], 0)), "cannot hold"),
    "huge dimensions whose product is small in 64 bits": (
        replaced(QUERY, tensor_info("blk.0.attn_q.weight", [1 << 33, 1 << 31], 12)),
        "cannot hold",
    ),
    "rows that blocks do not divide": (
        replaced(QUERY, tensor_info("blk.0.attn_q.weight", [255, 256], 12)),
        r"rows of 255, which blocks of 256 \(Q4_K\) do not divide",
    ),
    "an unsupported type": (
        replaced(QUERY, tensor_info("blk.0.attn_q.weight", [256, 256], 16)),
        "tensor 'blk.0.attn_q.weight' has the type IQ2_XXS",
    ),
    "an unknown type": (replaced(QUERY, tensor_info("blk.0.attn_q.weight", [256, 256], 999)), "the type number 999"),
    "more rows": (replaced(NORM, tensor_info("output_norm.weight", [1024], 0)), "'output_norm.weight' and .* overlap"),
    "an offset that is not aligned": (
        lambda c: c.replace(NORM + c[c.find(NORM) + len(NORM) :][:8], NORM + struct.pack("<Q", 1), 1),
        "begins at 1, which is not a multiple of 32",
    ),
    "an offset after the end": (
        lambda c: c.replace(NORM + c[c.find(NORM) + len(NORM) :][:8], NORM + struct.pack("<Q", 1 << 62), 1),
        "after the end of the file",
    ),
    "a cut": (lambda content: content[:-2000], "it is truncated"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_file_that_lies_is_refused_with_the_reason(path, name):
    change, words = LIES[name]
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(CheckpointError, match=words) as caught:
        open_gguf(path)
    assert str(path) in caught.value.message


@pytest.mark.parametrize("alignment", [0, 7, 12, 1 << 21])
def test_an_alignment_that_is_no_multiple_of_8_is_refused(tmp_path, alignment):
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("general.alignment") + struct.pack("<II", 4, alignment)
    (tmp_path / "model.gguf").write_bytes(header)
    with pytest.raises(CheckpointError, match=f"`general.alignment` is {alignment}"):
        open_gguf(tmp_path / "model.gguf")


def test_what_is_not_a_regular_file_is_refused(tmp_path):
    (tmp_path / "model.gguf").mkdir()
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_gguf(tmp_path / "model.gguf")
    with pytest.raises(CheckpointError, match="cannot be used"):
        open_gguf(tmp_path / "missing.gguf")


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"model-{number + 1:05}-of-00002.gguf" for number in range(2)]
    for number, path in enumerate(paths):
        small_file(path, split=(number, 2))
    return paths


def test_parts_are_read_as_one_model_from_any_of_them(parts):
    for path in parts:
        files = open_parts(path)
        assert [file.path for file in files] == parts
    assert len(open_tensors(open_parts(parts[0]))) == 23
    assert models_in(parts[0].parent) == [parts[0]]


def test_parts_that_do_not_belong_together_are_refused(parts, tmp_path):
    with pytest.raises(CheckpointError, match="in all parts; they have"):
        small_file(parts[1], split=(1, 2))
        content = parts[0].read_bytes()
        key = text("split.tensors.count") + struct.pack("<I", 5)
        parts[0].write_bytes(content.replace(key + struct.pack("<i", 24), key + struct.pack("<i", 30)))
        open_parts(parts[0])
    parts[1].unlink()
    with pytest.raises(CheckpointError, match=r"lacks model-00002-of-00002\.gguf"):
        open_parts(parts[0])
    parts[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(CheckpointError, match="one of 2 parts"):
        open_parts(tmp_path / "renamed.gguf")
    small_file(parts[0], split=(1, 2))
    small_file(parts[1], split=(1, 2))
    with pytest.raises(CheckpointError, match="says that it is part 1"):
        open_parts(parts[0])
    small_file(parts[0], split=(0, 2))
    small_file(tmp_path / "model-00002-of-00002.gguf", split=(0, 2))
    with pytest.raises(CheckpointError, match="says that it is part 0"):
        open_parts(parts[0])


def test_a_link_to_a_file_is_followed_to_its_parts(parts, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "mine.gguf"
    link.symlink_to(parts[0])
    assert [file.path for file in open_parts(link)] == parts


def use(path: Path) -> None:
    """Do everything with a file that serving it does before the model is built."""
    files = open_parts(path)
    folder_contents(files)
    tensors = open_tensors(open_parts(path))
    for name in tensors:
        value = tensors.read(name)
        if isinstance(value, QuantizedRows):
            value.whole()


@pytest.mark.parametrize("batch", range(6))
def test_damaged_files_are_used_or_refused_and_nothing_else(path, batch):
    """Thousands of damages; tests/attack/bombs/gguf_files.py makes more, in processes of their own."""
    content = path.read_bytes()
    header = open_gguf(path).header_bytes
    refused = 0
    with np.errstate(all="raise"):
        for seed in range(batch * CASES // 6, (batch + 1) * CASES // 6):
            path.write_bytes(damaged(content, header, seed))
            try:
                use(path)
            except CheckpointError:
                refused += 1
    assert refused > CASES // 12
