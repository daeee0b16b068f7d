"""Finds the files of a GGUF model: one file, or the parts NAME-00001-of-00003.gguf, NAME-00002-of-00003.gguf, …

Part N has the metadata `split.no` = N - 1, `split.count`, and `split.tensors.count`, the number of tensors of all
parts. The first part has the metadata of the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from quire.errors import CheckpointError
from quire.files import root_of
from quire_models.gguf.file.cursor import Value
from quire_models.gguf.file.reader import GGUFFile, open_gguf

SUFFIX = ".gguf"
MAX_PARTS = 999
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


def part_name(name: str) -> tuple[str, int, int] | None:
    """Stem, number (from 1) and count of a file that is named as one of several parts; None for others."""
    match = _PART.fullmatch(name)
    return None if match is None else (match["stem"], int(match["number"]), int(match["count"]))


def part_names(name: str) -> tuple[str, ...]:
    """Names of all parts of the model that the file `name` belongs to, in order; `name` itself if it has no parts."""
    parts = part_name(name)
    if parts is None:
        return (name,)
    stem, _, count = parts
    return tuple(f"{stem}-{number:05}-of-{count:05}{name[-len(SUFFIX) :]}" for number in range(1, count + 1))


def models_in(folder: Path) -> list[Path]:
    """The GGUF models of a folder: for each the file, or its first part. Projectors of vision models are left out."""
    files = sorted(path for path in folder.glob(f"*{SUFFIX}") if path.is_file() and not path.name.startswith("mmproj"))
    return [path for path in files if (parts := part_name(path.name)) is None or parts[1] == 1]


def open_parts(path: Path) -> tuple[GGUFFile, ...]:
    """Map and parse the files of the model that `path` (any of its parts) belongs to.

    A link to a file is followed, wherever it leads: its name was given by the user. Raises CheckpointError if a part is
    missing, the parts do not belong together, or one of them is not usable.
    """
    home = path.parent.resolve()
    if path.is_symlink() and root_of(path.parent) == home:
        path = path.resolve()
    names = part_names(path.name)
    if not 1 <= len(names) <= MAX_PARTS:
        raise CheckpointError(f"{path} is named as one of {len(names)} parts; 1 to {MAX_PARTS} are possible.")
    missing = [name for name in names if not (path.parent / name).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"{path.parent} lacks {missing[0]}{more}, a part of the model that {path.name} is in.")
    files = tuple(open_gguf(path.parent / name) for name in names)
    for index, file in enumerate(files):
        _check_part(file, index, len(files))
    _check_tensors(files)
    return files


def _check_part(file: GGUFFile, index: int, count: int) -> None:
    stated = _number(file.metadata, "split.count", file) or 1
    number = _number(file.metadata, "split.no", file)
    if stated != count:
        raise CheckpointError(
            f"{file.path} says that it is one of {stated} parts (`split.count`), but by its name there are {count}; "
            "parts must be named as llama.cpp names them, NAME-00001-of-00003.gguf."
        )
    if count > 1 and number != index:
        raise CheckpointError(f"{file.path} says that it is part {number} (`split.no`, from 0); its name says {index}.")


def _check_tensors(files: Sequence[GGUFFile]) -> None:
    placed: dict[str, Path] = {}
    for file in files:
        for tensor in file.tensors:
            if tensor.name in placed:
                raise CheckpointError(f"{placed[tensor.name]} and {file.path} both have the tensor {tensor.name!r}.")
            placed[tensor.name] = file.path
    stated = _number(files[0].metadata, "split.tensors.count", files[0])
    if len(files) > 1 and stated is not None and stated != len(placed):
        raise CheckpointError(f"{files[0].path} claims {stated} tensors in all parts; they have {len(placed)}.")


def _number(metadata: Mapping[str, Value], key: str, file: GGUFFile) -> int | None:
    value = metadata.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise CheckpointError(f"{file.path}: `{key}` must be a number from 0, got {value!r:.40}.")
    return value
