"""Compiles a library of one function in the place of the C++ ops, and keeps it in an empty folder."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quire_kernels.cpu import build, implementations, library
from quire_kernels.cpu.isa import InstructionSet

ANY = InstructionSet("any", frozenset(), ())


def source(number: int) -> str:
    """C++ of a library whose only function returns a number."""
    return f'extern "C" [[gnu::visibility("default")]] int answer() {{ return {number}; }}\n'


@contextmanager
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where compiled ops are kept, empty; the sources are one short file."""
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "library.cpp").write_text(source(42))
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(build.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    cached = (build.compiler, build.version, library.load, implementations._library_or_error)
    for each in cached:
        each.cache_clear()
    yield tmp_path / "cache" / "quire" / "ops"
    monkeypatch.undo()
    for each in cached:
        each.cache_clear()


def edit(text: str) -> None:
    (build.SOURCES / "library.cpp").write_text(text)


def answer(path: Path) -> int:
    return int(ctypes.CDLL(str(path)).answer())


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
