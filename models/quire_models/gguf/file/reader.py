"""Parses one GGUF file: its metadata, and where each tensor is. Nothing is read beyond what the header justifies.

A header is checked completely against the size of the file before a tensor is used: types, shapes, alignment, and that
no two tensors overlap.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from quire.errors import CheckpointError
from quire.files import FileRefused, open_regular, read_ahead, release_pages
from quire_models.gguf.file.cursor import Cursor, Value
from quire_models.gguf.file.types import TYPES, TensorType, type_name

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18
MAX_NAME_BYTES = 1 << 10
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 20
_MIN_KEY_BYTES, _MIN_TENSOR_BYTES = 8 + 4 + 1, 8 + 4 + 8 + 4 + 8
_ALIGNMENT = "general.alignment"


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of a file. shape: as in torch, rows last. start: in bytes from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    start: int

    @property
    def size(self) -> int:
        """Its bytes in the file."""
        return math.prod(self.shape) // self.type.elements * self.type.size


@dataclass(frozen=True, eq=False)
class GGUFFile:
    """A parsed file. header_bytes: length of metadata and tensor list. data: the mapped file."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]
    header_bytes: int
    data: mmap.mmap = field(repr=False)

    def prefetch(self, start: int, size: int) -> None:
        """Begin to read some bytes from the disk."""
        read_ahead(self.data, start, start + size)

    def release(self, start: int, size: int) -> None:
        """Give the memory of some bytes that were read, and not written, back to the system; the file keeps them."""
        release_pages(self.data, start, start + size)


def open_gguf(path: Path, root: Path | None = None) -> GGUFFile:
    """Map and parse a file. root: the folder that links must not leave, as in `quire.files`.

    Raises CheckpointError if it is not a regular file, not GGUF of version 2 or 3 (little-endian), or inconsistent.
    """
    try:
        with open_regular(path, root) as descriptor:
            size = os.fstat(descriptor).st_size
            if size < len(MAGIC):
                raise CheckpointError(f"{path} is not a usable GGUF file: it has {size} bytes.")
            data = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)  # torch wants buffers that can be written
    except FileRefused as error:
        raise CheckpointError(f"{path} cannot be used: {error}.") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be mapped: {error}.") from error
    with memoryview(data) as view:
        metadata, tensors, end = _parse(Cursor(view, str(path)), size)
    return GGUFFile(path, metadata, tensors, end, data)


def _parse(cursor: Cursor, size: int) -> tuple[dict[str, Value], tuple[TensorInfo, ...], int]:
    magic = cursor.number("I", "its magic number").to_bytes(4, "little")
    if magic != MAGIC:
        raise cursor.error(f"it begins with {magic!r} instead of {MAGIC!r}")
    version = cursor.number("I", "its version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        what = "big-endian numbers" if swapped in VERSIONS else f"version {version}"
        raise cursor.error(f"it has {what}; little-endian files of version 2 and 3 can be read")
    num_tensors, num_keys = (cursor.number("Q", f"its number of {what}") for what in ("tensors", "keys"))
    for count, limit, least, what in (
        (num_tensors, MAX_TENSORS, _MIN_TENSOR_BYTES, "tensors"),
        (num_keys, MAX_KEYS, _MIN_KEY_BYTES, "metadata keys"),
    ):
        if count > limit or count * least > size:
            raise cursor.error(f"it claims {count} {what}, more than {limit} or than its {size} bytes can hold")
    metadata = _metadata(cursor, num_keys)
    infos = [_info(cursor) for _ in range(num_tensors)]
    end = cursor.position
    return metadata, _placed(infos, _aligned(end, _alignment(metadata, cursor)), metadata, size, cursor), end


def _metadata(cursor: Cursor, count: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for index in range(count):
        key = cursor.text(f"metadata key {index}", MAX_NAME_BYTES)
        if key in metadata:
            raise cursor.error(f"it has the metadata key {key!r:.100} twice")
        metadata[key] = cursor.value(cursor.number("I", f"the type of {key!r:.100}"), key)
    return metadata


def _info(cursor: Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape, type and offset of a tensor, as the file states them."""
    name = cursor.text("the name of a tensor", MAX_NAME_BYTES)
    what = f"the description of tensor {name!r:.100}"
    num_dims = cursor.number("I", what)
    if not 1 <= num_dims <= MAX_DIMS:
        raise cursor.error(f"tensor {name!r:.100} has {num_dims} dimensions; 1 to {MAX_DIMS} are possible")
    dims = [cursor.number("Q", what) for _ in range(num_dims)]
    return name, tuple(reversed(dims)), cursor.number("I", what), cursor.number("Q", what)


def _alignment(metadata: Mapping[str, Value], cursor: Cursor) -> int:
    value = metadata.get(_ALIGNMENT, 32)
    if not isinstance(value, int) or not 8 <= value <= MAX_ALIGNMENT or value % 8:
        raise cursor.error(f"`{_ALIGNMENT}` is {value!r:.40}; it must be a multiple of 8 up to {MAX_ALIGNMENT}")
    return value


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _placed(
    infos: Sequence[tuple[str, tuple[int, ...], int, int]],
    start: int,
    metadata: Mapping[str, Value],
    size: int,
    cursor: Cursor,
) -> tuple[TensorInfo, ...]:
    """The tensors in the order of the file's list, checked. start: position of the first byte of data."""
    alignment = _alignment(metadata, cursor)
    tensors: dict[str, TensorInfo] = {}
    for name, shape, kind, offset in infos:
        if name in tensors:
            raise cursor.error(f"it has the tensor {name!r:.100} twice")
        if kind not in TYPES:
            raise cursor.error(f"tensor {name!r:.100} has the type {type_name(kind)}, which cannot be read")
        info = TensorInfo(name, shape, TYPES[kind], start + offset)
        reason = _problem(info, offset, alignment, size)
        if reason is not None:
            raise cursor.error(f"tensor {name!r:.100} {reason}")
        tensors[name] = info
    ordered = sorted(tensors.values(), key=lambda info: info.start)
    for info, after in pairwise(ordered):
        if info.start + info.size > after.start:
            raise cursor.error(f"tensors {info.name!r:.100} and {after.name!r:.100} overlap")
    return tuple(tensors.values())


def _problem(info: TensorInfo, offset: int, alignment: int, size: int) -> str | None:
    """Why a tensor cannot be where the header says; None if it can."""
    if not all(1 <= length <= size * 8 for length in info.shape):
        return f"has the shape {list(info.shape)}, which its file of {size} bytes cannot hold"
    if info.shape[-1] % info.type.elements:
        return f"has rows of {info.shape[-1]}, which blocks of {info.type.elements} ({info.type.name}) do not divide"
    if offset % alignment:
        return f"begins at {offset}, which is not a multiple of {alignment}"
    if info.start + info.size > size:
        return f"ends at byte {info.start + info.size}, after the end of the file ({size} bytes): it is truncated"
    return None
