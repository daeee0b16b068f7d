"""`platform doctor`: what it says of the machine, the C++ ops, and the choice of each op."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire import cli
from quire.commands.doctor import _rows
from quire_kernels import ops
from quire_kernels.cpu import build, implementations, isa, library

CACHES = (build.compiler, build.version, library.load, implementations.shared_ops, implementations._sampling)
needs_instructions = pytest.mark.skipif(not isa.available(), reason="no instruction set for the C++ ops")


@pytest.fixture
def broken_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    caches = (*CACHES, implementations._library_or_error)
    monkeypatch.setenv("CXX", "false")
    for each in caches:
        each.cache_clear()
    yield
    monkeypatch.undo()
    for each in caches:
        each.cache_clear()


def report(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert cli.main(["doctor", "--json", "--device", "cpu", *words]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@needs_instructions
@pytest.mark.skipif(build.compiler() is None, reason="there is no C++ compiler")
def test_the_compiler_the_library_and_the_instruction_sets_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys)
    names = [each.name for each in isa.available()]
    assert found["CPU instructions"] == ", ".join(names)
    command = build.compiler()
    assert command is not None
    assert str(found["C++ compiler"]).startswith(f"{command[0]} (")
    path, _, used = str(found["C++ ops"]).partition(", for ")
    assert used == names[0]
    assert Path(path).is_file()


@needs_instructions
@pytest.mark.usefixtures("broken_compiler")
def test_why_there_are_no_compiled_ops_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys)
    why = "the C++ compiler false does not run: it ends with status 1"
    assert found["C++ ops"] == f"not in use: {why}"
    [linear] = [choice for choice in found["ops"] if choice["op"] == "linear"]  # type: ignore[attr-defined]
    assert linear["chosen"] == "reference"
    assert f"it could not be loaded: BuildError: {why}" in linear["others"].values()


def test_the_table_has_every_op_once_and_gathers_what_is_alike(capsys: pytest.CaptureFixture[str]) -> None:
    choices = report(capsys, "--dtype", "float16")["ops"]
    rows = _rows(choices)  # type: ignore[arg-type]
    assert sorted(op for row in rows for op in row[0].split("\n")) == sorted(ops.TABLE)
    assert len({row[1:] for row in rows}) == len(rows) < len(ops.TABLE)
    assert cli.main(["doctor", "--device", "cpu", "--dtype", "float16"]) == 0
    printed = capsys.readouterr().out
    assert "ops on cpu, float16" in printed
    assert all(op in printed for op in ops.TABLE)


def test_implementations_with_one_reason_share_a_line() -> None:
    others = {"torch (built-in)": "slower", "mine (my-plugin)": "slower", "reference (built-in)": "slowest"}
    alike = {"chosen": "cpp", "plugin": "built-in", "others": others}
    choices = [{"op": "act", **alike}, {"op": "moe", "chosen": "torch", "plugin": "p", "others": {}}]
    assert _rows([*choices, {"op": "linear", **alike}]) == [
        ("act\nlinear", "cpp", "built-in", "torch, mine (my-plugin): slower\nreference: slowest"),
        ("moe", "torch", "p", ""),
    ]
