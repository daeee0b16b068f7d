"""Reads and validates the small JSON files of a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quire import files
from quire.errors import CheckpointError


def read_object(folder: Path, name: str) -> dict[str, Any] | None:
    """The object in a JSON file; None without the file. Raises CheckpointError for any other content."""
    value = _read(folder, name)
    if value is not None and not isinstance(value, dict):
        raise CheckpointError(f"{folder / name} must hold a JSON object.")
    return value


def read_objects(folder: Path, name: str) -> list[dict[str, Any]] | None:
    """The list of objects in a JSON file; None without the file. Raises CheckpointError for any other content."""
    value = _read(folder, name)
    if value is not None and not (isinstance(value, list) and all(isinstance(item, dict) for item in value)):
        raise CheckpointError(f"{folder / name} must hold a JSON list of objects.")
    return value


def _read(folder: Path, name: str) -> Any:
    try:
        return files.read_json(folder / name)
    except files.FileRefused as error:
        if error.missing:
            return None
        raise CheckpointError(f"{folder / name} cannot be used: {error}.") from error
