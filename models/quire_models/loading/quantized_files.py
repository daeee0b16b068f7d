"""A checkpoint with quantized weights: its tensors, with those of each quantized weight seen as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from quire.errors import CheckpointError
from quire.records import CheckpointFormat
from quire_models.loading.tensor_files import Shape, TensorFiles

if TYPE_CHECKING:
    from pathlib import Path


class WeightFiles(Protocol):
    """The weights of a checkpoint: a mapping of names to shapes, from which each is read when it is needed."""

    files: tuple[Path, ...]

    def __getitem__(self, name: str) -> Shape: ...

    def __iter__(self) -> Iterator[str]: ...

    def __len__(self) -> int: ...

    def read(self, name: str) -> Any:
        """A tensor on the CPU, or a quantized weight as `quire.records.CheckpointFormat.read` returns it."""
        ...

    def release(self, name: str) -> None:
        """Give the memory of what `read` returned back to the system, where it is mapped from a file."""
        ...


def prefetch(files: WeightFiles, name: str) -> None:
    """Begin to read what `files.read(name)` needs from the disk; does nothing if `files` has no such method."""
    begin: Callable[[str], None] | None = getattr(files, "prefetch", None)
    if begin is not None:
        begin(name)


class QuantizedFiles(Mapping[str, Shape]):
    """`TensorFiles` through a `CheckpointFormat`. A quantized weight has the name and shape of the unquantized one.

    Raises CheckpointError for tensors from which no weight can be made.
    """

    def __init__(self, tensors: TensorFiles, stored_as: CheckpointFormat) -> None:
        self.files = tensors.files
        self._tensors, self._format = tensors, stored_as
        self._matrices = stored_as.matrices(tensors, tensors.read)
        parts = {tensor for matrix in self._matrices.values() for tensor in matrix.tensors.values()}
        self._shapes = {name: tensors[name] for name in tensors if name not in parts}
        for name, matrix in self._matrices.items():
            if name in self._shapes:
                raise CheckpointError(f"The checkpoint has {name!r} both quantized and not.")
            self._shapes[name] = matrix.shape

    def __getitem__(self, name: str) -> Shape:
        return self._shapes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def read(self, name: str) -> Any:
        """A tensor on the CPU, or a quantized weight."""
        stored = self._matrices.get(name)
        if stored is None:
            return self._tensors.read(name)
        tensors = {role: self._tensors.read(tensor) for role, tensor in stored.tensors.items()}
        return self._format.read(name, stored, tensors)

    def prefetch(self, name: str) -> None:
        """Begin to read a tensor, or those of a quantized weight, from the disk."""
        for tensor in self._parts(name):
            self._tensors.prefetch(tensor)

    def release(self, name: str) -> None:
        """Give memory of mapped files back to the system."""
        for tensor in self._parts(name):
            self._tensors.release(tensor)

    def _parts(self, name: str) -> Iterable[str]:
        stored = self._matrices.get(name)
        return (name,) if stored is None else stored.tensors.values()
