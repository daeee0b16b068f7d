"""What the Triton kernels use on GPUs that are not here, as the report prints it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from interpreted import needs_triton, triton_ops

from quire_kernels.triton_gpu.ops import MODULES

pytestmark = needs_triton


@pytest.fixture(scope="module")
def report() -> Iterator[Any]:
    for _ in triton_ops(interpreted=False):
        yield importlib.import_module("quire_kernels.triton_gpu.report.__main__")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def test_kernels_fit_in_registers(report: Any, capsys: pytest.CaptureFixture[str]) -> None:
    report.main(["sm_90", "argmax", "sample", "rms_norm"])
    usage, roof = capsys.readouterr().out.split("\n\n")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in usage.splitlines()[2:]]
    assert [row[1] for row in rows] == ["largest", "largest_of_blocks", "summarize", "weigh", "draw", "normalize"]
    assert {row[2] for row in rows} == {"sm_90"}
    assert {row[5] for row in rows} == {"0"}, "spilled bytes"
    assert all(int(row[7]) >= 1 for row in rows)
    assert "| argmax | 32.8 | 0.0 | 9.8 µs | memory | 0.0 |" in roof.splitlines()


def test_the_table_in_the_docs_is_what_the_command_prints(report: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Of all ops but for what compiled kernels use, and the whole row of one op."""
    page = (Path(__file__).parents[3] / "docs/scale/gpu.md").read_text()
    head, line, *rows = page.split("<!-- begin computed -->\n")[1].split("\n<!-- end computed -->")[0].splitlines()
    wanted = [f"| {' | '.join(report.roof_cells(case))} |" for case in report.cases().values()]
    assert [row[: len(start)] for row, start in zip(rows, wanted, strict=True)] == wanted
    report.main(["--roof", "argmax"])
    assert capsys.readouterr().out.splitlines()[:2] == [head, line]


def test_bytes_in_flight_are_those_of_all_loads_of_the_resident_programs() -> None:
    roof: Any = importlib.import_module("quire_kernels.triton_gpu.report.roof")
    code = (
        "@P0 LDG.E.128 R4, desc[UR8][R2.64] ;\n LDG.E.U16 R5 ;\n LDGSTS.E.BYPASS.128 [R6] ;\n LDG.E R7 ;\n STG.E R1 ;"
    )
    usage = importlib.import_module("quire_kernels.triton_gpu.report.offline").KernelUsage(64, 0, 1024)
    launch = SimpleNamespace(grid=(264, 1, 1), warps=4, usage=usage, instructions=lambda: code)
    assert roof.bytes_in_flight(launch) == (16 + 2 + 16 + 4) * 128 * 2


@pytest.mark.parametrize(
    ("architecture", "op"),
    [
        ("sm_80", "moe prefill"),
        ("sm_90", "paged_attention latent prefill"),
        ("sm_90", "paged_attention fp32 256 prefill"),
    ],
)
def test_kernels_that_need_nearly_all_registers_spill_none(report: Any, architecture: str, op: str) -> None:
    report.main([architecture, op])


def test_a_kernel_that_spills_ends_the_report_with_an_error(
    report: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = SimpleNamespace(kernel="attend", warps=8, usage=report.KernelUsage(255, 96, 131072))
    monkeypatch.setattr(report, "launches", lambda case, architecture: [launch])
    with pytest.raises(SystemExit, match="spill registers: paged_attention decode on sm_90"):
        report.main(["sm_90", "paged_attention decode"])
    assert "| 255 | 96 | 128.0 | 1 |" in capsys.readouterr().out


def test_every_op_is_in_it(report: Any) -> None:
    without_kernels = {"fused_blocks"}
    assert {name.split()[0] for name in report.cases()} == set(MODULES) - without_kernels
    with pytest.raises(SystemExit, match="neither a GPU"):
        report.main(["sm_75"])
