"""Arrays of a step, in memory that is allocated once: `step_arrays` makes those of a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 64
"""Of each array in bytes: kernels are compiled for aligned addresses."""


def aligned(size: int) -> int:
    """`size` bytes, rounded up to `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class UploadMemory:
    """Pinned memory, `host`, and as much on the device, `device`, to which its beginning is copied.

    On the CPU both are the same memory.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        self._pinned = torch.zeros(size, dtype=torch.uint8, pin_memory=self._copied is not None)
        self.device = self._pinned if device.type == "cpu" else torch.zeros(size, dtype=torch.uint8, device=device)
        self.host = self._pinned.numpy()

    def wait(self) -> None:
        """Wait until `host` may be written: the copy of the step before is over, unless nothing read its results."""
        if self._copied is not None:
            self._copied.synchronize()

    def send(self, end: int, begin: int = 0) -> None:
        """Copy the bytes from `begin` to `end` - 1, in the order of the device's stream."""
        if self.device is not self._pinned:
            self.device[begin:end].copy_(self._pinned[begin:end], non_blocking=True)
        if self._copied is not None:
            self._copied.record()


class DeviceUpload:
    """Arrays in one block of memory: each is filled after `begin`, and there on the device after `send`."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._size, self._end = device, 0, 0
        self._memory: UploadMemory | None = None

    def array(self, size: int, dtype: torch.dtype) -> UploadedArray:
        """One of up to `size` elements. All are declared before the first `begin`."""
        assert self._memory is None, "arrays are declared first"
        self._size += aligned(size * dtype.itemsize)
        return UploadedArray(self, dtype)

    def begin(self) -> None:
        """Wait until the arrays of the step before are copied."""
        if self._memory is None:
            self._memory = UploadMemory(self._size, self._device)
        self._memory.wait()
        self._end = 0

    def put(self, values: np.ndarray[Any, Any], dtype: np.dtype[Any], kind: torch.dtype) -> Tensor:
        """The tensor that holds these values on the device after `send`."""
        assert self._memory is not None, "it has begun"
        begin, end = self._end, self._end + values.size * dtype.itemsize
        assert end <= self._size, f"{end} bytes do not fit {self._size}"
        self._memory.host[begin:end].view(dtype)[:] = values.reshape(-1)
        self._end = aligned(end)
        return self._memory.device[begin:end].view(kind).view(values.shape)

    def send(self) -> None:
        """Copy what was filled since `begin` to the device."""
        assert self._memory is not None, "it has begun"
        self._memory.send(self._end)


class UploadedArray:
    """One of the arrays of a `DeviceUpload`."""

    def __init__(self, upload: DeviceUpload, dtype: torch.dtype) -> None:
        self._upload, self._kind = upload, dtype
        self._dtype = np.dtype(str(dtype).removeprefix("torch."))

    def fill(self, values: Any) -> Tensor:
        """The tensor that holds these values once they are sent, of their shape."""
        return self._upload.put(np.asarray(values), self._dtype, self._kind)


class HostArrays:
    """Arrays on the CPU, with the methods of a `DeviceUpload`: values are at their place as soon as they are filled."""

    def array(self, size: int, dtype: torch.dtype) -> HostArray:
        """One of up to `size` elements."""
        return HostArray(size, dtype)

    def begin(self) -> None:
        """Nothing is on its way."""

    def send(self) -> None:
        """Nothing is left to copy."""


class HostArray:
    """One of the arrays of `HostArrays`: a tensor that is filled with values of different shapes."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self._tensor = torch.zeros(size, dtype=dtype)
        self._view = self._tensor.numpy()
        self._last = self._tensor[:0]  # the tensor returned last: most steps have the same shape as the one before

    def fill(self, values: Any) -> Tensor:
        """Copy values of any shape to the front of the buffer; returns a tensor of that shape."""
        values = np.asarray(values)
        size = values.size
        assert size <= self._view.size, f"{size} values do not fit a buffer of {self._view.size}"
        self._view[:size] = values.reshape(-1)
        if self._last.shape != values.shape:
            self._last = self._tensor[:size].view(values.shape)
        return self._last


def step_arrays(device: torch.device) -> DeviceUpload | HostArrays:
    """Places for the arrays of steps on a device."""
    return HostArrays() if device.type == "cpu" else DeviceUpload(device)
