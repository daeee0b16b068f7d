"""The C++ ops for AArch64, compiled by a cross compiler, on a CPU that qemu emulates."""

from __future__ import annotations

import subprocess

import pytest
from arm_rig import KERNEL_TESTS, SECONDS, command, missing

CHOSEN = ("cpu/test_cpu_ops.py", "test_int8.py", "sampling/test_draw.py")
"""Conformance of every op, and what sampling draws; `arm_rig` runs all tests, and every instruction set."""


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_ops_of_an_arm_cpu_give_what_they_should() -> None:
    line, environment = command("neon_bf16", "-O1", [str(KERNEL_TESTS / test) for test in CHOSEN])
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
