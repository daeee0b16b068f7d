"""Starts tests of the C++ ops for AArch64 with a cross compiler and qemu."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent
CROSS_COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
SECONDS = 1500


def missing() -> str | None:
    """Why nothing can be emulated, or None."""
    found = [name for name in (CROSS_COMPILER, EMULATOR, "g++") if not shutil.which(name)]
    return f"needs {found[0]} (apt install g++-aarch64-linux-gnu qemu-user)" if found else None


def tools() -> Path:
    """A folder with what is compiled from this one, and with the ops of earlier runs."""
    sources = [SOURCES / "shared_heap.cpp", SOURCES / "guest.cpp"]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"quire-arm-{os.getuid()}-{digest}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            heap = ["g++", "-std=c++17", "-O2", "-fno-builtin-malloc", "-shared", "-fPIC", str(sources[0])]
            subprocess.run([*heap, "-o", f"{made}/shared_heap.so"], check=True)
            guest = [CROSS_COMPILER, "-std=c++17", "-O2", "-fopenmp", str(sources[1]), "-ldl"]
            subprocess.run([*guest, "-o", f"{made}/guest"], check=True)
            shutil.copytree(made, folder, dirs_exist_ok=True)
    return folder


def run_tests(isa: str, *arguments: str) -> str:
    """What pytest prints about these tests; fails unless all pass."""
    if why := missing():
        pytest.skip(why)
    folder = tools()
    environment = {
        **os.environ,
        "CXX": CROSS_COMPILER,
        "LD_PRELOAD": str(folder / "shared_heap.so"),
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(SOURCES),
        "QUIRE_ARM_ISA": isa,
        "QUIRE_ARM_FOLDER": str(folder),
    }
    line = [sys.executable, "-m", "pytest", "-p", "arm_ops", "-n", "0", "-x", "-o", f"timeout={SECONDS}", *arguments]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout
