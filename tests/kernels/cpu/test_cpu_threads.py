"""Threads of a C++ op that share a core: one of them goes to another, if it may, and nothing else changes.

While a thread loads a model, programs that other threads run keep the GIL, unless they wait for other processes.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from quire_kernels.cpu import build, isa
from quire_kernels.cpu.library import Library, PanelMemory, load
from quire_kernels.cpu.ops import CpuOps

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


STEP: Any = SimpleNamespace()


def library(found: list[str]) -> Library:
    def functions(name: str) -> Any:
        return SimpleNamespace(quire_run=lambda step, program, length: found.append(name))

    return Library(cast("Any", None), functions("releasing"), PanelMemory(), functions("keeping"))


def run(made: Library, waits: bool = False) -> None:
    made.run(STEP, cast("Any", ()), waits)


def test_only_other_threads_keep_it_and_only_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.byref", lambda value: value)
    found: list[str] = []
    made, inside, leave = library(found), Event(), Event()

    def work() -> None:
        with made.loading():
            run(made)
            inside.set()
            leave.wait(60)

    run(made)
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(work)
        inside.wait(60)
        run(made)
        run(made, waits=True)
        leave.set()
        loading.result()
    run(made)
    assert found == ["releasing", "releasing", "keeping", "releasing", "releasing"]


def test_results_are_the_same() -> None:
    ops = CpuOps(load())
    x, product = torch.randn(5, 64), ops.linear(torch.randn(96, 64), None)
    wanted = product(x).clone()
    with ops.library.loading(), ThreadPoolExecutor(1) as pool:
        assert torch.equal(pool.submit(lambda: product(x).clone()).result(), wanted)
