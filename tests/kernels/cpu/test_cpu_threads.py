"""Threads of a C++ op that share a core: one of them goes to another, if it may, and nothing else changes."""

import os
import subprocess
import sys

import pytest

from quire_kernels.cpu import build, isa

pytestmark = pytest.mark.skipif(
    not (isa.available() and build.compiler()), reason="there is no compiler, or no instruction set for the C++ ops"
)

CROWDED = """
import os, sys, torch
from quire_kernels.cpu.library import load
from quire_kernels.cpu.ops import CpuOps

allowed = set(map(int, sys.argv[1].split(",")))
os.sched_setaffinity(0, {min(allowed)})
torch.set_num_threads(2)
ops = CpuOps(load())
x, weight = torch.randn(24, 512), torch.randn(4096, 512)
product = ops.linear(weight, None)
product(x)  # now there is a second thread, and it stays on that core
os.sched_setaffinity(0, allowed)
for _ in range(20):
    torch.testing.assert_close(product(x), x @ weight.T, atol=1e-3, rtol=1e-4)
assert os.sched_getaffinity(0) == allowed, os.sched_getaffinity(0)
tasks = [int(task) for task in os.listdir("/proc/self/task")]
print(sorted(len(os.sched_getaffinity(task)) for task in tasks))
"""


@pytest.mark.parametrize("cores", [1, 2])
def test_threads_that_share_a_core_compute_the_same_and_may_run_where_they_might(cores: int) -> None:
    here = sorted(os.sched_getaffinity(0))[:cores]
    if len(here) < cores:
        pytest.skip(f"this process may use {len(here)} core")
    path = os.pathsep.join(sys.path)
    result = subprocess.run(
        [sys.executable, "-c", CROWDED, ",".join(map(str, here))],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert "1" in result.stdout  # the second thread is still bound to the first core
