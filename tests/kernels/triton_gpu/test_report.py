"""What the Triton kernels use on GPUs that are not here, as the report prints it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from interpreted import needs_triton, triton_ops

from quire_kernels.triton_gpu.ops import MODULES

pytestmark = needs_triton


@pytest.fixture(scope="module")
def report() -> Iterator[Any]:
    for _ in triton_ops(interpreted=False):
        yield importlib.import_module("quire_kernels.triton_gpu.report.__main__")


def test_kernels_fit_in_registers(
    report: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    report.main(["sm_90", "argmax", "sample", "rms_norm"])
    usage, roof = capsys.readouterr().out.split("\n\n")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in usage.splitlines()[2:]]
    assert [row[1] for row in rows] == ["largest", "largest_of_blocks", "summarize", "weigh", "draw", "normalize"]
    assert {row[2] for row in rows} == {"sm_90"}
    assert {row[5] for row in rows} == {"0"}, "spilled bytes"
    assert all(int(row[7]) >= 1 for row in rows)
    assert "| argmax | 32.8 | 0.0 | 9.8 µs | memory |" in roof.splitlines()


def test_every_op_is_in_it(report: Any) -> None:
    without_kernels = {"fused_blocks"}
    assert {name.split()[0] for name in report.cases()} == set(MODULES) - without_kernels
    with pytest.raises(SystemExit, match="neither a GPU"):
        report.main(["sm_75"])
