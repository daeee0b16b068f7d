"""Starts tests of the C++ ops for AArch64 with a cross compiler and qemu.

python tests/helpers/kernels/arm/arm_rig.py sve256_bf16 [options of pytest and tests]
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).parent
CROSS_COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
KERNEL_TESTS = SOURCES.parents[2] / "kernels"
SECONDS = 1500
TESTS = (
    "cpu/test_cpu_ops.py",
    "cpu/test_cpu_attention.py",
    "cpu/test_cpu_products.py",
    "cpu/test_cpu_argmax.py",
    "cpu/test_compressed.py",
    "cpu/test_compressed_linear.py",
    "cpu/test_quantized_products.py",
    "cpu/test_quantized_programs.py",
    "cpu/test_compiled_adapters.py",
    "cpu/test_compiled_blocks.py",
    "cpu/test_compiled_cross_attention.py",
    "cpu/test_compiled_products.py",
    "low_rank",
    "moe",
    "sampling",
    "state",
    "test_attention_ends.py",
    "test_attention_options.py",
    "test_int8.py",
    "test_quantized.py",
    "test_quantized_pages.py",
    "test_quantized_rows.py",
    "test_row_attention.py",
)
"""Those of the C++ ops, in tests/kernels."""


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


def command(isa: str, options: str, arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment of pytest on an emulated CPU. options: more ones of the compiler."""
    folder = tools()
    environment = {
        **os.environ,
        "CXX": CROSS_COMPILER,
        "LD_PRELOAD": str(folder / "shared_heap.so"),
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(SOURCES),
        "QUIRE_ARM_ISA": isa,
        "QUIRE_ARM_OPTIONS": options,
        "QUIRE_ARM_FOLDER": str(folder),
    }
    return [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "arm_ops",
        "-n",
        "0",
        "-o",
        f"timeout={SECONDS}",
        *arguments,
    ], environment


def main(isa: str, *arguments: str) -> int:
    """Run the tests of the ops, or those given, with the ops as users compile them."""
    if why := missing():
        raise SystemExit(why)
    given = [each for each in arguments if not each.startswith("-")]
    tests = [] if given else [str(KERNEL_TESTS / test) for test in TESTS]
    line, environment = command(isa, "", [*arguments, *tests])
    return subprocess.run(line, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
