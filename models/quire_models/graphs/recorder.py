"""Captures functions that run on a device, to launch each of them as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Launch = Callable[[], None]


class Recorder(Protocol):
    """Captures functions whose results stay in memory that they were given."""

    def record(self, run: Callable[[], None]) -> Launch:
        """Call `run`, perhaps several times; the result does again what it did on the device. Raises RuntimeError."""
        ...


class CudaRecorder:
    """CUDA graphs, whose memory comes from one pool: only one of them runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], None]) -> Launch:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            run()  # kernels are compiled and matrices bound before, not during a capture
            self._stream.synchronize()
            # other threads may use the device meanwhile, to load other models
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                run()
            finally:
                graph.capture_end()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return graph.replay


def recorder_of(device: torch.device) -> Recorder | None:
    """None for a device without graphs."""
    return CudaRecorder(device) if device.type == "cuda" else None
