"""Emulated tiles: products by their definition, and an end of the process where a CPU would fault."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from emulated_isas import emulated, folder

from quire_kernels.cpu import build, isa

pytestmark = pytest.mark.skipif(not (isa.available() and build.compiler()), reason="the C++ ops cannot be compiled")

BYTES = [(torch.int8, torch.int8), (torch.int8, torch.uint8), (torch.uint8, torch.int8), (torch.uint8, torch.uint8)]
"""Data types of x and w, by the number of the product in `products.cpp`."""
BF16, RELEASED = 4, 5
INSTRUCTION = re.compile(r"\b(_mm512_\w+|_tile_\w+)\(")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiled = tmp_path_factory.mktemp("emulation") / "products.so"
    line = [
        *(build.compiler() or ()),
        "-std=c++17",
        "-shared",
        "-fPIC",
        *emulated("amx").options,
        str(folder() / "products.cpp"),
    ]
    subprocess.run([*line, "-o", str(compiled)], check=True)
    return compiled


def test_every_instruction_that_the_ops_use_is_emulated() -> None:
    """Also on machines that have it: there nothing else compiles the emulation."""
    used = {name for path in build.SOURCES.rglob("*.*pp") for name in INSTRUCTION.findall(path.read_text())}
    emulated_names = re.findall(
        r"^#define (_mm512_\w+|_tile_\w+)", (folder() / "emulate.hpp").read_text(), re.MULTILINE
    )
    assert len(used) > 80
    assert used <= set(emulated_names)


@pytest.mark.parametrize("shape", [(16, 64), (8, 32), (1, 4), (5, 16)], ids=str)
@pytest.mark.parametrize("kind", [0, 1, 2, 3, BF16])
def test_a_product_of_tiles_is_that_of_matrices(library: Path, kind: int, shape: tuple[int, int]) -> None:
    (rows, row_bytes), function = shape, ctypes.CDLL(str(library)).tile_product
    made = torch.Generator().manual_seed(rows)
    x, w = (torch.randint(0, 256, size, generator=made, dtype=torch.uint8) for size in (shape, (row_bytes // 4, 64)))
    sums = torch.randint(-1000, 1000, (rows, 16), generator=made, dtype=torch.int32)
    if kind == BF16:  # small integers, whose sums are exact in any order
        x, w, sums = x.view(torch.int8)[:, ::2].bfloat16(), w.view(torch.int8)[:, ::2].bfloat16(), sums.float()
        columns = w.view(-1, 16, 2).transpose(1, 2).reshape(-1, 16)
    else:
        x, w = x.view(BYTES[kind][0]), w.view(BYTES[kind][1])
        columns = w.view(-1, 16, 4).transpose(1, 2).reshape(-1, 16)
    want = sums.double() + x.double() @ columns.double()
    x, w = x.contiguous(), w.contiguous()
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, w, sums)]
    function(kind, rows, row_bytes, *pointers[:2], row_bytes // 4, pointers[2])
    assert torch.equal(sums.double(), want)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 17, 64, 16), "a tile has at most 16 rows of 64 bytes"),
        ((0, 16, 68, 16), "a tile has at most 16 rows of 64 bytes"),
        ((0, 0, 64, 16), "rows and their bytes are both 0, or neither"),
        ((0, 16, 32, 16), "a row of x has as many elements as w has rows"),
        ((RELEASED, 16, 64, 16), "tiles are not configured"),
    ],
)
def test_misuse_of_tiles_ends_the_process(library: Path, arguments: tuple[int, ...], message: str) -> None:
    kind, rows, row_bytes, w_rows = arguments
    script = f"""import ctypes; memory = ctypes.create_string_buffer(4096)
ctypes.CDLL({str(library)!r}).tile_product({kind}, {rows}, {row_bytes}, memory, memory, {w_rows}, memory)"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode < 0
    assert ended.stderr == f"misuse of AMX tiles: {message}\n"
