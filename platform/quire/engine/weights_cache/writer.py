"""Writes the packed matrices of a model to a file, while the model is served."""

from __future__ import annotations

import os
import zlib
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import ref

from torch import Tensor, nn

from quire.engine.weights_cache.format import (
    BLOCK_BYTES,
    PRELUDE_BYTES,
    Header,
    MatrixEntry,
    ModuleEntry,
    aligned,
    blocks_of,
    bytes_of,
    encode_header,
    encode_prelude,
)
from quire_kernels.cpu.linear.stored import PackedData, stored


class NotWritten(Exception):
    """The model was unloaded or changed before its file was complete."""


class PackedWriter:
    """Writes one file. The model is held by nothing here, so that it can be unloaded meanwhile: then writing ends.

    identity: what the file is for.
    """

    def __init__(self, model: nn.Module, identity: Mapping[str, Any]) -> None:
        self._model, self._shapes = ref(model), list[tuple[int, ...]]()
        self._paths: list[str] = []
        entries = []
        for path, module in model.named_modules():
            matrices = stored_matrices(module)
            if matrices:
                self._paths.append(path)
                entries.append(ModuleEntry(path, [_entry(outputs, matrix) for outputs, matrix in matrices]))
                self._shapes += [_sizes(matrix) for _, matrix in matrices]
        self._header = encode_header(Header(identity, entries))
        self._num_blocks = sum(blocks_of(size) for sizes in self._shapes for size in sizes)

    @property
    def num_bytes(self) -> int:
        """Size of the file; 0 if the model has no packed matrices."""
        at = PRELUDE_BYTES + len(self._header) + 4 * self._num_blocks
        for size in (size for sizes in self._shapes for size in sizes):
            at = aligned(at) + size
        return at if self._shapes else 0

    def write(self, path: Path) -> None:
        """Write the file. Raises NotWritten and OSError."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            checksums, at = array("I"), PRELUDE_BYTES + len(self._header) + 4 * self._num_blocks
            shapes = iter(self._shapes)
            for module_path in self._paths:
                for matrix in self._matrices(module_path):
                    if _sizes(matrix) != next(shapes, None):
                        raise NotWritten
                    for tensor in matrix.tensors.values():
                        at = _write_tensor(descriptor, tensor, aligned(at), checksums)
            sums = checksums.tobytes()
            _write_all(descriptor, memoryview(encode_prelude(self._header, sums) + self._header + sums), 0)
        finally:
            os.close(descriptor)

    def _matrices(self, path: str) -> Sequence[PackedData]:
        model = self._model()
        try:
            if model is not None:
                return [matrix for _, matrix in stored_matrices(model.get_submodule(path))]
        except AttributeError:  # a closed engine takes the modules of its model apart
            pass
        raise NotWritten


def stored_matrices(module: nn.Module) -> list[tuple[int, PackedData]]:
    """The packed matrices of a module and their outputs; none if it has none, or has one that cannot be stored."""
    found = []
    packed: Any = getattr(module, "packed_matrices", None)
    for matrix in () if packed is None else packed():
        as_data = stored(matrix)
        if as_data is None:
            return []
        found.append((matrix.packed.outputs, as_data))
    return found


def _entry(outputs: int, matrix: PackedData) -> MatrixEntry:
    return MatrixEntry(matrix.kind, outputs, matrix.numbers, list(matrix.tensors))


def _sizes(matrix: PackedData) -> tuple[int, ...]:
    return tuple(tensor.nbytes for tensor in matrix.tensors.values())


def _write_tensor(descriptor: int, tensor: Tensor, at: int, checksums: array[int]) -> int:
    """Write a tensor to `at` and add its checksums; returns its end."""
    view = bytes_of(tensor)
    for begin in range(0, len(view), BLOCK_BYTES):
        block = view[begin : begin + BLOCK_BYTES]
        checksums.append(zlib.crc32(block))
        _write_all(descriptor, block, at + begin)
    return at + len(view)


def _write_all(descriptor: int, data: memoryview, at: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, at)
        data, at = data[count:], at + count
