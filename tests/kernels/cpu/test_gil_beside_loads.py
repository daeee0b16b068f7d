"""While a thread loads a model, programs that other threads run keep the GIL, unless they wait for other processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from quire_kernels.cpu import build, isa
from quire_kernels.cpu.library import Library, PanelMemory, load
from quire_kernels.cpu.ops import CpuOps

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


@pytest.mark.skipif(not (isa.available() and build.compiler()), reason="there are no C++ ops here")
def test_results_are_the_same() -> None:
    ops = CpuOps(load())
    x, product = torch.randn(5, 64), ops.linear(torch.randn(96, 64), None)
    wanted = product(x).clone()
    with ops.library.loading(), ThreadPoolExecutor(1) as pool:
        assert torch.equal(pool.submit(lambda: product(x).clone()).result(), wanted)
