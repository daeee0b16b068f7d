"""Keeps a file for each model that serves requests, for supervisors that watch files. Uses event hooks only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.plugin import Option, hookimpl

if TYPE_CHECKING:
    from quire.plugin import ModelInfo


def _file(info: ModelInfo, options: Mapping[str, Any]) -> Path:
    return Path(options["folder"]) / f"{info.name.replace('/', '--')}.ready"


@hookimpl
def quire_options() -> Iterable[Option]:
    """The folder of the files."""
    yield Option("folder", str, ".", "folder for the files")


@hookimpl
def quire_engine_started(info: ModelInfo, options: Mapping[str, Any]) -> None:
    """Create the file of the model."""
    _file(info, options).write_text(f"{info.architecture} {info.dtype} {info.device}\n")


@hookimpl
def quire_engine_stopping(info: ModelInfo, options: Mapping[str, Any]) -> None:
    """Remove the file of the model."""
    _file(info, options).unlink(missing_ok=True)
