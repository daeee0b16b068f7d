"""`torch.cuda` of a fake GPU, for a build of torch without CUDA."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_gpu import FakeGpu

from quire_kernels.cpu import build

GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>)
"""
"""Indexing asks for the current device in C++, which a build without CUDA does not know."""


@cache
def load_guard(folder: Path) -> None:
    """Once for the process. Skips the test without a compiler, and where torch has CUDA itself."""
    if torch.version.cuda is not None:
        pytest.skip("torch is built with CUDA: its own device guard would be replaced")
    compiler = build.compiler()
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    package = Path(torch.__file__).parent
    source, library = folder / "guard.cpp", folder / "guard.so"
    source.write_text(GUARD)
    options = ["-std=c++20", "-O0", "-shared", "-fPIC", f"-I{package / 'include'}", f"-L{package / 'lib'}", "-lc10"]
    subprocess.run([*compiler, str(source), "-o", str(library), *options], check=True, capture_output=True)
    ctypes.CDLL(str(library))


class _Stream:
    cuda_stream = 0

    _gpu: FakeGpu

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def synchronize(self) -> None:
        self._gpu.wait("synchronize of a stream")

    def wait_stream(self, other: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass


class _Event:
    """Waiting for one is no wait for the device's queue: events here end with copies that were sent before."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


def _without_gradients(mode: Any) -> None:
    """In the place of inference mode, in which views of tensors of a subclass cannot be written."""
    mode._before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)


def _with_gradients(mode: Any, *_: Any) -> None:
    torch.set_grad_enabled(mode._before)


@contextmanager
def fake_gpu() -> Iterator[FakeGpu]:
    """`torch.cuda` finds one GPU of compute capability 9.0 with 16 GiB, for this thread."""
    gpu = FakeGpu()
    streams = type("Stream", (_Stream,), {"_gpu": gpu})
    stream = streams()
    with pytest.MonkeyPatch.context() as patch:
        for name, found in {
            "is_available": lambda: True,
            "get_device_capability": lambda *_: (9, 0),
            "mem_get_info": lambda *_: (12 << 30, 16 << 30),
            "memory_allocated": lambda *_: 0,
            "max_memory_allocated": lambda *_: 0,
            "reset_peak_memory_stats": lambda *_: None,
            "empty_cache": lambda: None,
            "synchronize": lambda *_: gpu.wait("synchronize"),
            "current_stream": lambda *_: stream,
            "Stream": streams,
            "stream": lambda *_: nullcontext(),
            "Event": _Event,
        }.items():
            patch.setattr(torch.cuda, name, found)
        patch.setattr(torch.inference_mode, "__enter__", _without_gradients)
        patch.setattr(torch.inference_mode, "__exit__", _with_gradients)
        before = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor` is then copied to its device in the mode
        try:
            with gpu:
                yield gpu
        finally:
            torch._C._set_only_lift_cpu_tensors(before)
