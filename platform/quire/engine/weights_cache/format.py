"""The layout of a file of packed matrices.

    MAGIC, header length and number of checksums (two uint64), SHA-256 of header and checksums
    header: JSON, see `Header`
    checksums: uint32 each, CRC-32 of each block of each tensor, in the order of the header
    tensors: each at a multiple of ALIGNMENT, in the order of the header

Places of tensors follow from their sizes, and these from what the model expects, so a file has no addresses.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from quire.files import FileRefused, parse_json

MAGIC = b"quire weights 1\n"
ALIGNMENT = 64
BLOCK_BYTES = 1 << 20
"""Bytes of a checksum's block: they are still in a core's cache when they are checked after they were read."""

MAX_HEADER_BYTES = 64 << 20
MAX_CHECKSUMS = 1 << 24
_LENGTHS = struct.Struct("<QQ")
PRELUDE_BYTES = len(MAGIC) + _LENGTHS.size + hashlib.sha256().digest_size


class BadFile(Exception):
    """A file is not what it should be; the message says why."""


@dataclass(frozen=True)
class MatrixEntry:
    """A matrix: see `quire_kernels.cpu.linear.stored.PackedData`. tensors: names, in their order in the file."""

    kind: str
    outputs: int
    numbers: Mapping[str, int]
    tensors: Sequence[str]


@dataclass(frozen=True)
class ModuleEntry:
    """The matrices of a module of the model, by its path."""

    path: str
    matrices: Sequence[MatrixEntry]


@dataclass(frozen=True)
class Header:
    """identity: what the file is for. modules: what it has."""

    identity: Mapping[str, Any]
    modules: Sequence[ModuleEntry]


def blocks_of(num_bytes: int) -> int:
    """Checksums of a tensor."""
    return -(-num_bytes // BLOCK_BYTES)


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    array: Any = tensor.numpy()
    return memoryview(array).cast("B")


def aligned(offset: int) -> int:
    """The next place at which a tensor may begin."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def encode_header(header: Header) -> bytes:
    """The JSON of a header."""
    return json.dumps(asdict(header)).encode()


def encode_prelude(header: bytes, checksums: bytes) -> bytes:
    """What comes before the header."""
    digest = hashlib.sha256(header + checksums).digest()
    return MAGIC + _LENGTHS.pack(len(header), len(checksums) // 4) + digest


def decode_prelude(prelude: bytes) -> tuple[int, int, bytes]:
    """Header length, number of checksums, and digest. Raises BadFile."""
    if len(prelude) != PRELUDE_BYTES or not prelude.startswith(MAGIC):
        raise BadFile("it is no file of packed weights of this version")
    length, count = _LENGTHS.unpack_from(prelude, len(MAGIC))
    if length > MAX_HEADER_BYTES or count > MAX_CHECKSUMS:
        raise BadFile("its header is too long")
    return length, count, prelude[len(MAGIC) + _LENGTHS.size :]


def decode_header(text: bytes, checksums: bytes, digest: bytes) -> Header:
    """Raises BadFile for a header that was changed or is not of this form."""
    if hashlib.sha256(text + checksums).digest() != digest:
        raise BadFile("its header is damaged")
    try:
        found = parse_json(text)
        modules = [
            ModuleEntry(str(module["path"]), [_matrix(matrix) for matrix in module["matrices"]])
            for module in found["modules"]
        ]
        return Header(dict(found["identity"]), modules)
    except (FileRefused, LookupError, TypeError, ValueError) as error:
        raise BadFile("its header has another form") from error


def _matrix(found: Any) -> MatrixEntry:
    numbers, outputs = dict(found["numbers"]), found["outputs"]
    if type(outputs) is not int or not all(type(number) is int for number in numbers.values()):
        raise ValueError("sizes are integers")
    return MatrixEntry(str(found["kind"]), outputs, numbers, [str(name) for name in found["tensors"]])
