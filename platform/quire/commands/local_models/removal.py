"""Removes models from the cache: whole repositories, or the files of one of their GGUF models."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress

from quire.commands.local_models.cached import CachedModel
from quire.errors import ConfigError


def remove(model: CachedModel, models: Sequence[CachedModel]) -> int:
    """Remove a model, and return the number of bytes that are free then. models: everything in the cache.

    Raises ConfigError if files cannot be removed.
    """
    rest = [other for other in models if other.repo == model.repo and other.name != model.name]
    try:
        return _remove_files(model, rest) if rest else _remove_repository(model)
    except OSError as error:
        raise ConfigError(f"{model.name} cannot be removed: {error}.") from error


def _remove_repository(model: CachedModel) -> int:
    """Remove the repository's folder in the cache, with all its revisions, and its locks."""
    folder = model.folder.parent.parent
    freed = sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    shutil.rmtree(folder)
    shutil.rmtree(folder.parent / ".locks" / folder.name, ignore_errors=True)
    return freed


def _remove_files(model: CachedModel, rest: Sequence[CachedModel]) -> int:
    """Remove the files of a model from all snapshots; those of the repository's other models stay."""
    kept = frozenset().union(*(other.blobs for other in rest))
    removed = model.blobs - kept
    freed = sum(blob.stat().st_size for blob in removed)
    for snapshot in model.folder.parent.iterdir():
        for link in [path for path in snapshot.rglob("*") if path.is_symlink() or path.is_file()]:
            if link.resolve() in removed:
                link.unlink()
    for blob in removed:
        with suppress(FileNotFoundError):  # where links are not possible, the blob was the file itself
            blob.unlink()
    return freed
