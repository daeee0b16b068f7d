"""A file for each model that answers, for supervisors that look for files. Events only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire import Option, hookimpl

if TYPE_CHECKING:
    from quire.types import ModelInfo


def _file(info: ModelInfo, options: Mapping[str, Any]) -> Path:
    return Path(options["folder"]) / f"{info.name.replace('/', '--')}.ready"


@hookimpl
def quire_options() -> Iterable[Option]:
    """Where the files lie."""
    yield Option("folder", str, ".", "folder for the files")


@hookimpl
def quire_engine_started(info: ModelInfo, options: Mapping[str, Any]) -> None:
    """The model answers."""
    _file(info, options).write_text(f"{info.architecture} {info.dtype} {info.device}\n")


@hookimpl
def quire_engine_stopping(info: ModelInfo, options: Mapping[str, Any]) -> None:
    """It will answer no more."""
    _file(info, options).unlink(missing_ok=True)
