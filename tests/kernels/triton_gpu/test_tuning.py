"""Launch settings by shape: every choice gives the same products, and the table is read with care."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreted import DEVICE, triton_ops

pytest.importorskip("triton")

from quire_kernels.triton_gpu.tuning import __main__ as command
from quire_kernels.triton_gpu.tuning.cases import row_cases
from quire_kernels.triton_gpu.tuning.launch_table import LaunchTable
from quire_kernels.triton_gpu.tuning.search import quickest
from quire_kernels.triton_gpu.tuning.settings import AttentionSettings, RowSettings

CPU = torch.device("cpu")
SHAPE = "8x64 bfloat16"


def test_a_table_replaces_only_what_it_names(tmp_path: Path) -> None:
    default = RowSettings(outputs=2, inputs=1024)
    LaunchTable().with_settings("linear", SHAPE, RowSettings(4, 512, 8)).write(tmp_path / "a" / "table.json")
    table = LaunchTable.read(tmp_path / "a" / "table.json")
    assert table.find("linear", SHAPE, default) == RowSettings(4, 512, 8)
    assert table.find("linear", "8x32 bfloat16", default) == default
    assert table.find("moe", SHAPE, default) == default


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "{", '{"linear": 1}', '{"linear": {"8x64 bfloat16": 3}}', "\x00"],
)
def test_a_file_that_is_no_table_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "table.json").write_text(text)
    assert LaunchTable.read(tmp_path / "table.json") == LaunchTable()


@pytest.mark.parametrize("given", [{"outputs": 3}, {"outputs": True}, {"outputs": "2"}, {"threads": 4}])
def test_settings_that_are_no_choice_are_ignored(tmp_path: Path, given: object) -> None:
    (tmp_path / "table.json").write_text(json.dumps({"linear": {SHAPE: given}}))
    default = RowSettings(outputs=2, inputs=1024)
    assert LaunchTable.read(tmp_path / "table.json").find("linear", SHAPE, default) == default


def test_the_search_finds_the_quickest_settings() -> None:
    def seconds_of(settings: AttentionSettings) -> float:
        if settings.n == 128 and settings.ahead == 3:
            return math.inf  # more shared memory than there is
        return 1e-5 * (1 + abs(settings.n - 128) / 128 + abs(settings.warps - 8) / 8 + (settings.ahead - 1))

    found = quickest(AttentionSettings(n=32, warps=2, ahead=3), seconds_of)
    assert found.settings == AttentionSettings(n=128, warps=8, ahead=1)
    assert found.seconds == 1e-5 < found.default_s


def test_the_search_keeps_the_default_where_nothing_gains_more_than_the_noise() -> None:
    default = AttentionSettings(n=64, warps=4, ahead=2)
    assert quickest(default, lambda settings: 1.0 if settings == default else 0.98).settings == default


@pytest.fixture(scope="module")
def cases() -> Iterator[Any]:
    """The module of cases, with interpreted kernels where there is no GPU."""
    for _ in triton_ops():
        yield importlib.import_module("quire_kernels.triton_gpu.tuning.cases")


@pytest.mark.parametrize(
    ("op", "given"),
    [
        ("linear", {"outputs": 8, "inputs": 256, "warps": 2}),
        ("linear_quantized", {"outputs": 1, "inputs": 256, "warps": 8}),
        ("linear_quantized", {"outputs": 32, "words": 32, "stages": 2, "programs": 132}),
        ("paged_attention", {"n": 16, "warps": 2, "ahead": 1}),
    ],
)
def test_other_settings_give_the_same_results(cases: Any, op: str, given: dict[str, int]) -> None:
    device, heads = torch.device(DEVICE), cases.AttentionHeads(4, 2, 32)
    made = {
        "linear": lambda: cases.row_cases(24, 320, device, torch.bfloat16),
        "linear_quantized": lambda: (
            case for name in cases.CODE_FORMS for case in cases.code_cases(40, 512, name, device)
        ),
        "paged_attention": lambda: chain(
            cases.attention_cases(heads, 2, 1, 300, device, torch.bfloat16),
            cases.attention_cases(heads, 1, 40, 40, device, torch.bfloat16),
        ),
    }
    chosen = [case for case in made[op]() if given.keys() <= case.default.CHOICES.keys()]
    assert chosen
    for case in chosen:
        expected = case.calls(cases.LaunchTable())[0]()
        found = case.calls(cases.LaunchTable({op: {case.shape: given}}))[0]()
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2 * float(expected.abs().max()))


def test_the_command_refuses_what_it_cannot_measure(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--codes", "int5"], ["--matrices", "8"], ["--heads", "8x"], ["--heads", "1x2"]):
        with pytest.raises(SystemExit):
            command.main(arguments)
        assert "error:" in capsys.readouterr().err


def test_the_command_keeps_what_is_quickest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Times are given: settings with 8 warps take half as long."""
    (case,) = row_cases(8, 64, CPU, torch.bfloat16)
    monkeypatch.setattr(command, "graph_seconds", lambda calls: 1e-5 / calls[0].func.settings.warps)
    table = command.tune(LaunchTable(), iter([case]))
    assert table.find("linear", SHAPE, RowSettings(2, 1024)) == RowSettings(2, 1024, 8)
    assert f"linear, {SHAPE}: 2.5 -> 1.2 µs" in capsys.readouterr().out
