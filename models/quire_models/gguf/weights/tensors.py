"""The tensors of a GGUF model under the names and in the layouts of transformers, read on demand.

It undoes what llama.cpp's converter does: the order of rows of queries and keys in Llama's family, 1 added to the norms
of Gemma, matrices that GPT-2 stores transposed, experts stacked into one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from quire.errors import CheckpointError
from quire_kernels.quantized import QuantizedMatrix
from quire_kernels.quantized_rows import BlockRows, QuantizedRows, as_slice
from quire_models.gguf.file.metadata import Metadata
from quire_models.gguf.file.reader import GGUFFile, TensorInfo
from quire_models.gguf.weights.names import FAMILIES, IGNORED, Family
from quire_models.gguf.weights.unpack import unpacked

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

Shape: TypeAlias = tuple[int, ...]
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
MAX_EXPERTS = 1 << 14


@dataclass(frozen=True)
class _Stored:
    """Where a tensor is, and how it differs. shape: in transformers.

    expert: its index in a stack. heads: rows of each head are in the order of rotary pairs. plus_one: 1 was added.
    transposed: transformers has the transpose.
    """

    file: GGUFFile
    info: TensorInfo
    shape: Shape
    expert: int | None = None
    heads: int | None = None
    plus_one: bool = False
    transposed: bool = False


class GGUFTensors(Mapping[str, Shape]):
    """Mapping of names in transformers to shapes; `read` loads one tensor. files: the files with the tensors."""

    def __init__(self, files: Sequence[GGUFFile]) -> None:
        """Raises CheckpointError for an architecture that cannot be read, and for tensors that it does not have."""
        self.files: tuple[Path, ...] = tuple(file.path for file in files)
        metadata = Metadata(files[0])
        family = FAMILIES.get(metadata.architecture)
        if family is None:
            raise metadata.unknown_architecture(sorted(FAMILIES))
        self._stored: dict[str, _Stored] = {}
        for file in files:
            for info in file.tensors:
                if not IGNORED.fullmatch(info.name):
                    self._add(_Stored(file, info, info.shape), family, metadata)

    def _add(self, stored: _Stored, family: Family, metadata: Metadata) -> None:
        found = family.rename(stored.info.name)
        if found is None:
            raise CheckpointError(
                f"{stored.file.path} has a tensor {stored.info.name!r:.100}, which {metadata.architecture} models lack."
            )
        module, name = found
        if family.permuted and module in ("attn_q", "attn_k"):
            heads = metadata.size("attention.head_count")
            heads = heads if module == "attn_q" else metadata.size("attention.head_count_kv", heads)
            stored = replace(stored, heads=_checked_heads(stored, heads))
        stored = replace(stored, plus_one=family.norms_plus_one and module.endswith("norm"))
        if module in family.transposed and len(stored.shape) == 2:
            stored = replace(stored, transposed=True, shape=stored.shape[::-1])
        if module == "ffn_gate_inp_shexp" and len(stored.shape) == 1:
            stored = replace(stored, shape=(1, *stored.shape))
        if "{e}" not in name:
            self._put(name, stored)
            return
        if len(stored.shape) != 3 or stored.shape[0] > MAX_EXPERTS:
            raise CheckpointError(
                f"{stored.file.path}: tensor {stored.info.name!r} must be [experts, outputs, inputs] of at most "
                f"{MAX_EXPERTS} experts; it has the shape {list(stored.shape)}."
            )
        for expert in range(stored.shape[0]):
            self._put(name.replace("{e}", str(expert)), replace(stored, shape=stored.shape[1:], expert=expert))

    def _put(self, name: str, stored: _Stored) -> None:
        if name in self._stored:
            raise CheckpointError(f"{stored.file.path} has the tensor {stored.info.name!r} twice, for {name!r}.")
        self._stored[name] = stored

    @property
    def quantized_types(self) -> tuple[str, ...]:
        """Names of the types of the quantized tensors, such as Q4_K."""
        types = {stored.info.type for stored in self._stored.values()}
        return tuple(sorted(one.name for one in types if not one.plain))

    def __getitem__(self, name: str) -> Shape:
        return self._stored[name].shape

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def read(self, name: str) -> QuantizedRows | Tensor:
        """The tensor on the CPU: `QuantizedRows` if it is quantized, else a tensor, usually a view of the file.

        Raises CheckpointError if its scales are not finite; of `QuantizedRows`, where rows are read.
        """
        stored = self._stored[name]
        if not stored.info.type.plain:
            matrix = _quantized(stored)
            if not (stored.transposed or stored.plus_one or len(stored.shape) != 2):
                return matrix if stored.heads is None else matrix.rows(_rotated_rows(stored.shape[0], stored.heads))
        value = _plain(stored) if stored.info.type.plain else matrix.dequantized()
        if stored.heads is not None:
            value = value[_rotated_rows(stored.shape[0], stored.heads)]
        if stored.transposed:
            return value.T
        value = value.view(stored.shape)
        return value - 1 if stored.plus_one else value

    def prefetch(self, name: str) -> None:
        """Begin to read a tensor from the disk."""
        stored = self._stored[name]
        stored.file.prefetch(stored.info.start, stored.info.size)

    def release(self, name: str) -> None:
        """Give the memory of a tensor back to the system; that of quantized matrices was given back with their rows."""
        stored = self._stored[name]
        if stored.info.type.plain:
            stored.file.release(stored.info.start, stored.info.size)


def _checked_heads(stored: _Stored, heads: int) -> int:
    if not heads or stored.shape[0] % (2 * heads):
        raise CheckpointError(
            f"{stored.file.path}: tensor {stored.info.name!r} has {stored.shape[0]} rows, which {heads} heads of an "
            "even size do not divide."
        )
    return heads


def _rotated_rows(count: int, heads: int) -> Tensor:
    """Row ids int64 [count]: where the rows are whose partners in the rotation are half a head apart.

    GGUF has the partners of a rotation beside each other, transformers in the two halves of a head.
    """
    return torch.arange(count).view(heads, -1, 2).transpose(1, 2).reshape(-1)


def _plain(stored: _Stored) -> Tensor:
    info = stored.info
    values = torch.frombuffer(
        stored.file.data, dtype=_PLAIN[info.type.name], count=math.prod(info.shape), offset=info.start
    ).view(info.shape)
    return values if stored.expert is None else values[stored.expert]


def _quantized(stored: _Stored) -> QuantizedRows:
    """The matrix as it is in the file; tensors that are no matrices as one with a row for each of their rows."""
    info = stored.info
    parts = 1 if stored.expert is None else info.shape[0]
    size, inputs = info.size // parts, info.shape[-1]
    outputs = math.prod(info.shape[:-1]) // parts
    start = info.start + (stored.expert or 0) * size
    blocks = np.frombuffer(stored.file.data, np.uint8, count=size, offset=start).reshape(outputs, -1)

    def read(ids: Tensor) -> QuantizedMatrix:
        index = as_slice(ids)
        rows = blocks[index] if isinstance(index, slice) else blocks[index.numpy()]
        try:
            matrix = unpacked(rows, info.type.name, inputs)
        except ValueError as error:
            raise CheckpointError(f"{stored.file.path}: tensor {info.name!r} has {error}.") from error
        if isinstance(index, slice):
            stored.file.release(start + index.start * blocks.shape[1], rows.size)
        return matrix

    count = inputs // info.type.elements
    addresses = blocks.ctypes.data + torch.arange(outputs) * blocks.shape[1]
    rows = BlockRows(info.type.name, count, addresses, lambda: stored.file.release(start, size), blocks)
    return QuantizedRows(torch.Size((outputs, inputs)), read, rows)
