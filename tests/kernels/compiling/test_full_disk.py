"""Compiled ops on a full disk: nothing half is kept, another folder is used, and the error says what is wrong."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from built_ops import ANY, answer, kept

from quire_kernels.cpu import build
from quire_kernels.cpu.build import BuildError

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="there is no C++ compiler")


def test_a_full_disk_leaves_no_half_library_and_the_next_folder_is_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = build._run

    def failing(line: list[str], seconds: float, folder: str | None = None) -> subprocess.CompletedProcess[str]:
        if folder is None or not folder.startswith(str(cache)):
            return run(line, seconds, folder)
        Path(line[-1]).write_bytes(b"half")
        return subprocess.CompletedProcess(line, 1, "", "ld: final link failed: No space left on device\n")

    monkeypatch.setattr(build, "_run", failing)
    path = build.library(ANY)
    assert not path.is_relative_to(cache)
    assert answer(path) == 42
    assert kept(cache) == []


def test_full_disks_everywhere_are_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = subprocess.CompletedProcess([], 1, "", "fatal error: error writing to x.s: No space left on device\n")
    run = build._run
    monkeypatch.setattr(build, "_run", lambda line, seconds, folder=None: full if folder else run(line, seconds))
    with pytest.raises(BuildError, match=f"no usable folder for compiled ops: .*No space left on device: '{cache}'"):
        build.library(ANY)


def test_the_compilers_temporary_files_are_beside_the_library(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/nonexistent")
    assert answer(build.library(ANY)) == 42
