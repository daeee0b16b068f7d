"""The tensor files of a model folder, as one mapping from names to tensors that are read on demand.

Formats: safetensors and torch's own (weights only, memory-mapped), each in one file or in shards with
an index. Names are the checkpoint's.
"""

from __future__ import annotations

import math
import mmap
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from quire.errors import CheckpointError
from quire.files import FileRefused, check, open_regular, parse_json, read_ahead, read_json, release_pages

if TYPE_CHECKING:
    from torch import Tensor

_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json", "*.safetensors")
_TORCH = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model*.bin")
_OTHERS = ("consolidated", "adapter_")
"""Prefixes of files with the same weights in another layout, or with adapters."""

MAX_INDEX_BYTES = 256 << 20

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
}
"""torch's names of data types in safetensors; others are left to the library."""

Shape = tuple[int, ...]


class TensorFiles(Mapping[str, tuple[int, ...]]):
    """Mapping of tensor names to shapes of a checkpoint; `read` loads one tensor.

    files: the files with the tensors. Iteration yields the tensors of a file consecutively.
    """

    def __init__(self, files: list[Path], index: Mapping[str, Path]) -> None:
        """index: the file of each tensor according to the checkpoint's own index, empty without one."""
        self.files = tuple(files)
        self._shapes: dict[str, Shape] = {}
        self._opened: dict[str, _OpenFile] = {}
        for file in files:
            opened = _open(file)
            for name, shape in opened.shapes.items():
                if name in self._shapes:
                    raise CheckpointError(f"Tensor {name!r} is in more than one file of {file.parent}.")
                self._shapes[name] = shape
                self._opened[name] = opened
        for name, file in index.items():
            if name not in self._shapes:
                raise CheckpointError(
                    f"The index of {file.parent} lists {name!r} in {file.name}, which does not have it."
                )

    def __getitem__(self, name: str) -> Shape:
        return self._shapes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def read(self, name: str) -> Tensor:
        """The tensor on the CPU, in the checkpoint's dtype, usually a view of the mapped file."""
        return self._opened[name].read(name)

    def prefetch(self, name: str) -> None:
        """Begin to read a tensor from the disk."""
        self._opened[name].prefetch(name)

    def release(self, name: str) -> None:
        """Give the memory of a tensor that was read, and not written, back to the system; the file keeps it."""
        self._opened[name].release(name)


def find(folder: Path, load_format: str = "auto") -> TensorFiles:
    """The tensor files of a folder; `auto` prefers safetensors.

    Raises CheckpointError if there are none, a shard is missing, or a file is truncated or corrupt.
    """
    kinds = {"safetensors": (_SAFETENSORS,), "pt": (_TORCH,)}.get(load_format, (_SAFETENSORS, _TORCH))
    for single, index, pattern in kinds:
        placed = _read_index(folder, folder / index)
        if placed is not None:
            return TensorFiles(list(dict.fromkeys(placed.values())), placed)
        if (folder / single).is_file():
            return TensorFiles([folder / single], {})
        files = sorted(file for file in folder.glob(pattern) if not file.name.startswith(_OTHERS))
        if files:
            return TensorFiles(files, {})
    wanted = " or ".join(single for single, _, _ in kinds)
    raise CheckpointError(f"{folder} has no weights: expected {wanted}, or shards of it with an index.")


def _read_index(folder: Path, path: Path) -> dict[str, Path] | None:
    """File of each tensor by the index; None if there is no index."""
    try:
        placed = read_json(path, MAX_INDEX_BYTES)["weight_map"]
        files = {str(name): str(file) for name, file in placed.items()}
    except FileRefused as error:
        if error.missing:
            return None
        raise CheckpointError(f"{path} is not an index of tensor files: {error}.") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is not an index of tensor files: it needs a `weight_map`.") from error
    for file in dict.fromkeys(files.values()):
        if Path(file).name != file:
            raise CheckpointError(f"{path} names {file!r}, which is outside its folder.")
        if not (folder / file).is_file():
            raise CheckpointError(f"{folder} lacks the shard {file}, which {path.name} names.")
    return {name: folder / file for name, file in files.items()}


class _OpenFile(Protocol):
    """A file, and the shapes of its tensors."""

    shapes: Mapping[str, Shape]

    def read(self, name: str) -> Tensor: ...

    def prefetch(self, name: str) -> None: ...

    def release(self, name: str) -> None: ...


def _open(file: Path) -> _OpenFile:
    try:
        check(file)
    except FileRefused as error:
        raise CheckpointError(f"{file} cannot be used: {error}.") from error
    return _Safetensors(file) if file.suffix == ".safetensors" else _TorchFile(file)


class _Safetensors:
    """A safetensors file. The library checks it and reads its shapes; tensors are views of a mapping of our own, whose
    memory can be given back while the file is open.
    """

    def __init__(self, file: Path) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            self._opened = safe_open(str(file), framework="pt", device="cpu")
            names = self._opened.keys()
            self.shapes: Mapping[str, Shape] = {n: tuple(self._opened.get_slice(n).get_shape()) for n in names}
            with open_regular(file) as descriptor:
                self._data = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)  # torch wants memory it could write to
            start = 8 + int.from_bytes(self._data[:8], "little")
            header = parse_json(self._data[8:start])
            self._spans = {n: [start + at for at in header[n]["data_offsets"]] for n in names}
            self._dtypes = {n: _DTYPES.get(header[n]["dtype"]) for n in names}
        except (SafetensorError, FileRefused, OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{file} is truncated or corrupt: {error}") from error
        self._file, self._error = file, SafetensorError

    def read(self, name: str) -> Tensor:
        import torch

        shape, stored_as, start = self.shapes[name], self._dtypes[name], self._spans[name][0]
        try:
            if stored_as is None or 0 in shape:
                return self._opened.get_tensor(name)
            dtype: torch.dtype = getattr(torch, stored_as)
            count = math.prod(shape) * dtype.itemsize
            found = torch.frombuffer(self._data, dtype=torch.uint8, count=count, offset=start)
        except (self._error, ValueError) as error:
            raise CheckpointError(f"{self._file}: tensor {name!r} cannot be read: {error}") from error
        return (found if found.data_ptr() % dtype.itemsize == 0 else found.clone()).view(dtype).view(shape)

    def prefetch(self, name: str) -> None:
        read_ahead(self._data, *self._spans[name])

    def release(self, name: str) -> None:
        release_pages(self._data, *self._spans[name])


class _TorchFile:
    """A file of torch's own format. Memory of its tensors stays mapped."""

    def __init__(self, file: Path) -> None:
        import torch

        try:
            # Only the zip format of torch ≥ 1.6 can be memory-mapped; older files are read completely.
            state: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
        except Exception as error:  # a corrupt pickle can raise almost anything
            reason = str(error).strip().splitlines()
            raise CheckpointError(
                f"{file} is truncated, corrupt, or holds more than tensors: {reason[0][:200] if reason else 'empty'}"
            ) from error
        if not isinstance(state, Mapping) or not all(isinstance(t, torch.Tensor) for t in state.values()):
            raise CheckpointError(f"{file} must hold a map from names to tensors.")
        self._tensors: Mapping[str, Tensor] = state
        self.shapes: Mapping[str, Shape] = {name: tuple(tensor.shape) for name, tensor in state.items()}

    def read(self, name: str) -> Tensor:
        return self._tensors[name]

    def prefetch(self, name: str) -> None:
        pass

    def release(self, name: str) -> None:
        pass
