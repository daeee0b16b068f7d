"""The tensor files of a model folder, as one mapping from names to tensors that are read on demand.

Formats: safetensors and torch's own (weights only, memory-mapped), each in one file or in shards with
an index. Names are the checkpoint's.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError
from quire.files import FileRefused, check, read_json

if TYPE_CHECKING:
    from torch import Tensor

_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json", "*.safetensors")
_TORCH = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model*.bin")
_OTHERS = ("consolidated", "adapter_")
"""Prefixes of files with the same weights in another layout, or with adapters."""

MAX_INDEX_BYTES = 256 << 20

Shape = tuple[int, ...]


class TensorFiles(Mapping[str, tuple[int, ...]]):
    """Mapping of tensor names to shapes of a checkpoint; `read` loads one tensor.

    files: the files with the tensors. Iteration yields the tensors of a file consecutively.
    """

    def __init__(self, files: list[Path], index: Mapping[str, Path]) -> None:
        """index: the file of each tensor according to the checkpoint's own index, empty without one."""
        self.files = tuple(files)
        self._shapes: dict[str, Shape] = {}
        self._readers: dict[str, Callable[[str], Tensor]] = {}
        for file in files:
            shapes, read = _open(file)
            for name, shape in shapes.items():
                if name in self._shapes:
                    raise CheckpointError(f"Tensor {name!r} is in more than one file of {file.parent}.")
                self._shapes[name] = shape
                self._readers[name] = read
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
        return self._readers[name](name)


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


def _open(file: Path) -> tuple[Mapping[str, Shape], Callable[[str], Tensor]]:
    try:
        check(file)
    except FileRefused as error:
        raise CheckpointError(f"{file} cannot be used: {error}.") from error
    return _open_safetensors(file) if file.suffix == ".safetensors" else _open_torch(file)


def _open_safetensors(file: Path) -> tuple[Mapping[str, Shape], Callable[[str], Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        opened = safe_open(str(file), framework="pt", device="cpu")
        shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is truncated or corrupt: {error}") from error

    def read(name: str) -> Tensor:
        try:
            return opened.get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(f"{file}: tensor {name!r} cannot be read: {error}") from error

    return shapes, read


def _open_torch(file: Path) -> tuple[Mapping[str, Shape], Callable[[str], Tensor]]:
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
    tensors: Mapping[str, Tensor] = state
    return {name: tuple(t.shape) for name, t in tensors.items()}, tensors.__getitem__
