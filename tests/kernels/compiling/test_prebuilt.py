"""Libraries of the ops that a wheel brings."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from built_ops import ANY, answer, edit, source

from quire_kernels.cpu import build, isa

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="there is no C++ compiler")


@pytest.fixture
def prebuilt(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation with a compiled library, on a machine without a compiler."""
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "prebuilt")
    found = build.prebuild(ANY, build.PREBUILT)
    monkeypatch.setattr(build, "compiler", lambda: None)
    return found


def test_a_library_of_the_wheel_needs_no_compiler(prebuilt: Path, cache: Path) -> None:
    assert build.library(ANY) == prebuilt
    assert answer(prebuilt) == 42
    assert not cache.exists(), "nothing is compiled"


def test_a_library_of_other_sources_is_not_used(prebuilt: Path) -> None:
    edit(source(43))
    with pytest.raises(build.BuildError, match="there is no C\\+\\+ compiler"):
        build.library(ANY)


def test_a_library_that_cannot_be_loaded_is_passed_over_with_a_warning(
    prebuilt: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prebuilt.write_bytes(b"not a library")
    with pytest.raises(build.BuildError, match="there is no C\\+\\+ compiler"):
        build.library(ANY)
    assert "cannot be loaded here" in caplog.text


# --- the build hook of the wheel --------------------------------------------------------------------------


@pytest.fixture
def hook(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`initialize` of the hook for a root without files, with one instruction set."""
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    from hatch_build import CompiledOps

    monkeypatch.setattr(isa, "INSTRUCTION_SETS", (ANY,))
    return lambda version, data: CompiledOps.initialize(SimpleNamespace(root=str(tmp_path)), version, data)


def test_the_hook_adds_libraries_and_makes_the_wheel_one_for_x86(
    hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_COMPILE_OPS", "all")
    data: dict[str, Any] = {"force_include": {}}
    hook("standard", data)
    name = build.prebuilt_name(ANY)
    assert data["force_include"] == {str(tmp_path / "build" / "ops" / name): f"quire_kernels/cpu/prebuilt/{name}"}
    assert (data["tag"], data["pure_python"]) == ("py3-none-linux_x86_64", False)
    assert answer(tmp_path / "build" / "ops" / name) == 42


@pytest.mark.parametrize(("chosen", "version"), [("", "standard"), ("all", "editable")])
def test_other_builds_compile_nothing(hook: Any, chosen: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_COMPILE_OPS", chosen)
    data: dict[str, Any] = {"force_include": {}}
    hook(version, data)
    assert data == {"force_include": {}}


def test_an_unknown_instruction_set_stops_the_build(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_COMPILE_OPS", "any,sse2")
    with pytest.raises(ValueError, match="there is no 'sse2'; there are any, or all"):
        hook("standard", {"force_include": {}})
