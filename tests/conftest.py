"""Fixtures of tests in many folders. Torch is imported inside them, because some tests run without it."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cpu_isas import FOR_FLOATS, HERE, cpu_ops
from forked_popen import ForkedPopen, ForkServer
from hypothesis import HealthCheck, settings
from plugin_site import PluginSite

# Read when torch is imported. Threads that wait for each other sleep soon, as in the host: others may use the cores.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

# Examples take as long as the machine lets them: a busy one makes no test fail.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")

# Imports make objects but no garbage: collections of them take a tenth of their time.
gc.set_threshold(20_000, 20, 10)

if TYPE_CHECKING:
    from quire_kernels.cpu.ops import CpuOps


def pytest_configure() -> None:
    """nohup has SIGHUP ignored, and the servers that tests start would inherit that; they do not inherit a handler."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: None)


def pytest_collection_finish() -> None:
    """Thousands of tests stay until the end: leave them and what they import out of collections."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: at the end, when one process has no file left, the other has a short one."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Models here are so small that threads would mostly wait for each other; and sums are in one order."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def forked_processes() -> Iterator[None]:
    """Processes of Quire are forked from one that has imported it, unless `fresh_processes` says otherwise."""
    if sys.platform != "linux" or Path("/dev/nvidiactl").exists():  # CUDA does not work in forks
        yield
        return
    server = ForkServer()
    popen = ForkedPopen(server.connect)
    popen.install()
    yield
    popen.uninstall()
    server.close()


@pytest.fixture
def fresh_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of the start itself: the processes of this one are started as those of users are."""
    monkeypatch.setattr("forked_popen.PROGRAMS", {})


@pytest.fixture
def seeded() -> None:
    """Random numbers are the same each time."""
    import torch

    torch.manual_seed(0)


@pytest.fixture
def threads(seeded: None) -> Iterator[Any]:
    """Sets how many threads compute: two, unless the test says otherwise. They wait for each other: small calls take
    ten times as long as in one.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(params=HERE)
def cpp(request: pytest.FixtureRequest) -> CpuOps:
    """The C++ ops, of one instruction set after the other."""
    return cpu_ops(request.param)


@pytest.fixture(params=FOR_FLOATS)
def cpp_floats(request: pytest.FixtureRequest) -> CpuOps:
    """The C++ ops, for tests that compute with floats alone."""
    return cpu_ops(request.param)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginSite]:
    """An empty folder on the import path, for plugins."""
    folder = tmp_path / "plugin_site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    made = PluginSite(folder)
    yield made
    made.close()
