"""Resolves names of adapters in a local folder: `<folder>/<name>/adapter_config.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from quire.plugin import AdapterSource, Option, hookimpl

CONFIG = "adapter_config.json"


@hookimpl
def quire_options() -> Iterable[Option]:
    """The option `--adapter-folder.folder`."""
    yield Option("folder", str, "adapters", "folder that holds a folder per adapter")


@hookimpl
def quire_resolve_adapter(name: str, options: Mapping[str, Any]) -> AdapterSource | None:
    """The subfolder of that name, if it is directly in the folder; its revision is the time of its last change."""
    folder = Path(options["folder"]) / name
    if folder.resolve().parent != Path(options["folder"]).resolve() or not (folder / CONFIG).is_file():
        return None
    return AdapterSource(folder, revision=str((folder / CONFIG).stat().st_mtime_ns))
