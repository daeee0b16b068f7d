"""Reads checkpoints of draft heads, which are hostile until shown otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quire.errors import ConfigError, StartupError
from quire.plugin import DrafterContext
from quire_models.loading import tensor_files
from quire_models.loading.checkpoint import check_sizes, raw_config
from quire_models.loading.tensor_files import TensorFiles

FLAG = "--speculative-config"


def find_heads(context: DrafterContext) -> Path:
    """The folder of `model` in the settings, downloaded if that is a hub id. Raises ConfigError."""
    given, revision = context.settings.get("model"), context.settings.get("revision")
    if not isinstance(given, str) or not given:
        raise ConfigError(f"`model` of {FLAG} must name the folder or hub id of the draft heads; got {given!r:.100}.")
    if not isinstance(revision, str | None):
        raise ConfigError(f"`revision` of {FLAG} must be a text; got {revision!r:.100}.")
    assert context.find_folder is not None, "the engine provides it"
    with as_config_error():
        return context.find_folder(given, revision)


class HeadFiles:
    """config.json and tensors of a folder. Raises ConfigError, here and in its methods, with the tensor's name."""

    def __init__(self, folder: Path, single_files: tuple[str, ...] = ()) -> None:
        """single_files: names that the tensors' only file has."""
        self.folder = folder
        with as_config_error():
            self.config = raw_config(self.folder)
            check_sizes(self.config, self.folder)
            single = next((self.folder / name for name in single_files if (self.folder / name).is_file()), None)
            self.tensors = TensorFiles([single], {}) if single else tensor_files.find(self.folder)

    def check_size(self, key: str, value: Any, expected: int, whose: str) -> None:
        """Raise ConfigError if a size of config.json is present and not what the model has."""
        if value is not None and value != expected:
            raise ConfigError(f"{self.folder}: `{key}` is {value!r:.40}, but that of {whose} is {expected}.")

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor of floating-point numbers, all of them finite."""
        if name not in self.tensors:
            raise ConfigError(f"{self.folder} lacks the tensor {name!r}.")
        found = tuple(self.tensors[name])
        if found != shape:
            raise ConfigError(f"{self.folder}: tensor {name!r} has shape {list(found)}; it must be {list(shape)}.")
        with as_config_error():
            return checked(name, self.tensors.read(name), self.folder)


class CheckedFiles(Mapping[str, tuple[int, ...]]):
    """The tensors of a checkpoint under other names, each checked when it is read (`WeightFiles`).

    renamed: the new name of a tensor, None to leave it out. Raises ConfigError if two get one name.
    """

    def __init__(self, files: HeadFiles, renamed: Callable[[str], str | None]) -> None:
        self.folder, self.files, self._tensors = files.folder, files.tensors.files, files.tensors
        self._names: dict[str, str] = {}
        for theirs in files.tensors:
            name = renamed(theirs)
            if name is None:
                continue
            if name in self._names:
                raise ConfigError(f"{self.folder} has the tensor {name!r:.120} twice.")
            self._names[name] = theirs

    def __getitem__(self, name: str) -> tuple[int, ...]:
        return self._tensors[self._names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def read(self, name: str) -> Tensor:
        """A tensor of finite floating-point numbers."""
        return checked(self._names[name], self.read_any(name), self.folder)

    def read_any(self, name: str) -> Tensor:
        """A tensor of any dtype."""
        return self._tensors.read(self._names[name])

    def release(self, name: str) -> None:
        self._tensors.release(self._names[name])


def checked(name: str, tensor: Tensor, folder: Path) -> Tensor:
    """The tensor. Raises ConfigError unless its elements are finite numbers."""
    if not isinstance(tensor, Tensor) or not tensor.dtype.is_floating_point:
        raise ConfigError(f"{folder}: tensor {name!r} does not hold floating-point numbers.")
    if not bool(torch.isfinite(tensor.float() if tensor.dtype.itemsize == 1 else tensor).all()):
        raise ConfigError(f"{folder}: tensor {name!r} contains NaN or infinity.")
    return tensor


@contextmanager
def as_config_error() -> Iterator[None]:
    """Errors of the files become errors of the setting that names them."""
    try:
        yield
    except StartupError as error:
        raise ConfigError(f"`model` of {FLAG}: {error.message}") from error
