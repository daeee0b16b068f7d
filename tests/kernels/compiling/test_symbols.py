"""What a compiled library of the C++ ops shows to others in its process."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from cpu_isas import HERE

from quire_kernels.cpu import build


@pytest.mark.skipif(not HERE or shutil.which("nm") is None, reason="no C++ ops, or no nm (binutils)")
def test_only_the_functions_called_from_python_are_visible() -> None:
    """Visible variables of templates would be one for all instruction sets that a process has loaded."""
    path = build.library(next(iter(HERE.values())))
    listed = subprocess.run(["nm", "-D", "--defined-only", path], check=True, capture_output=True, text=True).stdout
    names = [line.split()[-1] for line in listed.splitlines()]
    assert "quire_run" in names
    assert [name for name in names if "5quire" in name] == []  # mangled: of the namespace
