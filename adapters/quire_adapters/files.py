"""The tensors of an adapter's folder, read into memory at once: the file may be written anew while we look at it.

Formats: adapter_model.safetensors, else adapter_model.bin (torch's own, weights only).
"""

from __future__ import annotations

import io
import json
import math
import mmap
import stat
import sys
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire.errors import BadRequest

SAFETENSORS, TORCH = "adapter_model.safetensors", "adapter_model.bin"
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
MAX_HEADER = 100 << 20
"""As safetensors has it."""


class _Entry(NamedTuple):
    """A tensor in the header of a safetensors file; start, stop: bytes behind the header."""

    start: int
    stop: int
    dtype: torch.dtype
    shape: list[int]

    @classmethod
    def of(cls, given: Any) -> _Entry:
        """Raises ValueError, TypeError or KeyError for what is none."""
        shape, (start, stop) = given["shape"], given["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in (*shape, start, stop)):
            raise ValueError("shapes and offsets are whole numbers")
        if given["dtype"] not in DTYPES:
            raise ValueError(f"tensors are of {', '.join(DTYPES)}, not {given['dtype']!r:.20}")
        return cls(start, stop, DTYPES[given["dtype"]], list(shape))


def read(folder: Path, max_bytes: int) -> dict[str, Tensor]:
    """Name → tensor, in memory of their own, all of floating point.

    max_bytes: of the file. Raises BadRequest if it is missing, larger, truncated, corrupt, or holds anything else.
    """
    for name, parse in ((SAFETENSORS, _safetensors), (TORCH, _torch)):
        path = folder / name
        if path.exists():
            return parse(path, _content(path, max_bytes))
    raise BadRequest(f"{folder} has no tensors: {SAFETENSORS} (or {TORCH}) was expected.", "lora_path")


def _content(path: Path, max_bytes: int) -> memoryview:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise _refused(path, "it is no regular file")
        with path.open("rb") as file:
            size = file.seek(0, io.SEEK_END)
            if size > max_bytes:
                most = f"an adapter of this model has at most {max_bytes} by --max-lora-rank"
                raise _refused(path, f"it has {size} bytes; {most}")
            file.seek(0)
            # large pages, which the system has back when the tensors go, whatever else was allocated meanwhile
            memory = mmap.mmap(-1, max(1, size), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if sys.platform == "linux":
                with suppress(OSError):  # where there are none
                    memory.madvise(mmap.MADV_HUGEPAGE)
            content = memoryview(memory)[:size]
            return content[: file.readinto(content)]
    except OSError as error:
        raise BadRequest(f"{path} cannot be read ({error.strerror}).", "lora_path") from error


def _safetensors(path: Path, content: memoryview) -> dict[str, Tensor]:
    """The format: eight bytes that say how long the header is, the header in JSON, and the tensors side by side."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(MAX_HEADER, len(content) - 8):
        raise _refused(path, "it is truncated or corrupt: its header does not fit")
    try:
        header = json.loads(bytes(content[8 : 8 + length]))
        header.pop("__metadata__", None)
        entries = {name: _Entry.of(given) for name, given in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _refused(path, f"it is truncated or corrupt: its header cannot be read ({error})") from error
    found, end = {}, 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1][:2]):
        size = math.prod(entry.shape) * entry.dtype.itemsize
        if entry.start != end or entry.stop - entry.start != size:
            raise _refused(path, f"it is corrupt: {name!r} does not lie where its shape says")
        end, at = entry.stop, 8 + length
        if at + end > len(content):
            raise _refused(path, f"it is truncated: {name!r} ends after the file")
        found[name] = _view(content, entry.dtype, entry.shape, at + entry.start)
    if 8 + length + end != len(content):
        raise _refused(path, "it is corrupt: there is more in it than its tensors")
    return found


def _view(content: memoryview, dtype: torch.dtype, shape: list[int], at: int) -> Tensor:
    count = math.prod(shape)
    if not count:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(content, dtype=dtype, count=count, offset=at).view(shape)


def _torch(path: Path, content: memoryview) -> dict[str, Tensor]:
    try:
        file = io.BytesIO(content)
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                unpacked = sum(entry.file_size for entry in archive.infolist())
            if unpacked > len(content):
                raise _refused(path, "its entries are compressed")
        file.seek(0)
        state: Any = torch.load(file, map_location="cpu", weights_only=True)
    except BadRequest:
        raise
    except Exception as error:  # a broken pickle can raise nearly anything
        reason = str(error).strip().splitlines() or ["empty"]
        raise _refused(path, f"it is truncated, corrupt, or holds more than tensors ({reason[0]:.200})") from error
    tensors = isinstance(state, Mapping) and all(
        isinstance(name, str)
        and isinstance(tensor, Tensor)
        and tensor.layout == torch.strided
        and tensor.is_floating_point()
        for name, tensor in state.items()
    )
    if not tensors:
        raise _refused(path, "it must hold a map from names to tensors of floating point")
    return {name: tensor.detach() for name, tensor in state.items()}


def _refused(path: Path, reason: str) -> BadRequest:
    return BadRequest(f"{path} cannot be used: {reason}.", "lora_path")
