"""Broken, hostile and oversized adapter files are refused."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_drafts import draft, refused, tensors
from lora_rig import Ours
from safetensors.torch import save

# --- the files -----------------------------------------------------------------------------------------


def good() -> bytes:
    return save(tensors())


def header(entries: Any, data: int = 0) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + bytes(data)


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


FILES = {
    "empty": (b"", "truncated or corrupt"),
    "text": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "truncated or corrupt"),
    "cut in the header": (good()[:50], "truncated or corrupt"),
    "cut in the tensors": (good()[:-1], "truncated"),
    "something behind": (good() + b"x", "more in it than its tensors"),
    "header of a list": (header([]), "its header is no object"),
    "header of a number": (header({"a": 1}), "header cannot be read"),
    "whole numbers": (header({"a": {**ENTRY, "dtype": "I64"}}, 8), "tensors are of F64, F32, F16, BF16, not 'I64'"),
    "no shape": (header({"a": {"dtype": "F32"}}, 8), "header cannot be read ('shape')"),
    "a shape that lies": (header({"a": {**ENTRY, "shape": [3]}}, 8), "'a' is not at the offset that its shape"),
    "an absurd shape": (header({"a": {**ENTRY, "shape": [1 << 40, 1 << 40]}}, 8), "'a' is not at the offset"),
    "a negative shape": (header({"a": {**ENTRY, "shape": [-1, -2]}}, 8), "shapes and offsets are whole numbers"),
    "a gap": (header({"a": {**ENTRY, "data_offsets": [8, 16]}}, 16), "'a' is not at the offset"),
    "the same twice": (header({"a": ENTRY, "b": ENTRY}, 8), "'b' is not at the offset"),
    "offsets of text": (header({"a": {**ENTRY, "data_offsets": "ab"}}, 8), "shapes and offsets are whole numbers"),
    "too many offsets": (header({"a": {**ENTRY, "data_offsets": [0, 4, 8]}}, 8), "header cannot be read"),
}


@pytest.mark.parametrize("case", FILES.values(), ids=FILES.keys())
def test_safetensors_that_are_broken_are_refused(ours: Ours, tmp_path: Path, case: tuple[bytes, str]) -> None:
    folder, (content, said) = draft().write(tmp_path / "x"), case
    (folder / "adapter_model.safetensors").write_bytes(content)
    assert said in refused(ours, folder)


def bins() -> dict[str, tuple[bytes, str]]:
    def saved(value: Any) -> bytes:
        file = io.BytesIO()
        torch.save(value, file)
        return file.getvalue()

    packed, plain = io.BytesIO(), saved({"a": torch.zeros(10_000)})
    with zipfile.ZipFile(io.BytesIO(plain)) as archive, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as other:
        for name in archive.namelist():
            other.writestr(name, archive.read(name))
    return {
        "empty": (b"", "truncated, corrupt"),
        "cut off": (saved(tensors())[:-200], "truncated, corrupt"),
        "code": (pickle.dumps(os.getcwd), "holds more than tensors"),
        "no map": (saved([torch.zeros(1)]), "a mapping from names to tensors of floating point"),
        "whole numbers": (
            saved({"a": torch.zeros(1, dtype=torch.int64)}),
            "a mapping from names to tensors of floating",
        ),
        "no tensors": (saved({"a": 1}), "a mapping from names to tensors of floating point"),
        "compressed": (packed.getvalue(), "its entries are compressed"),
    }


@pytest.mark.parametrize("case", bins().values(), ids=bins().keys())
def test_files_of_torch_that_are_broken_are_refused(ours: Ours, tmp_path: Path, case: tuple[bytes, str]) -> None:
    folder, (content, said) = draft().write(tmp_path / "x"), case
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.bin").write_bytes(content)
    assert said in refused(ours, folder)


def test_files_that_cannot_be_read_are_refused(ours: Ours, tmp_path: Path) -> None:
    assert "adapter_config.json cannot be used: it cannot be read (No such file" in refused(ours, tmp_path / "nowhere")
    folder = draft().write(tmp_path / "x")
    file = folder / "adapter_model.safetensors"
    file.unlink()
    assert "has no tensors: adapter_model.safetensors (or adapter_model.bin) was expected" in refused(ours, folder)
    os.mkfifo(file)
    assert "it is not a regular file" in refused(ours, folder)
    file.unlink()
    file.mkdir()
    assert "it is not a regular file" in refused(ours, folder)


def test_a_file_larger_than_any_adapter_of_the_model_is_not_read(ours: Ours, tmp_path: Path) -> None:
    folder = draft().write(tmp_path / "x")
    with (folder / "adapter_model.safetensors").open("wb") as file:
        file.truncate(1 << 40)  # of nothing: it takes no room
    assert "it has 1099511627776 bytes; an adapter of this model has at most" in refused(ours, folder)
