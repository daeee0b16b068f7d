"""Adapters by name from a local folder: `<folder>/<name>/adapter_config.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from quire import AdapterSource, Option, hookimpl

CONFIG = "adapter_config.json"


@hookimpl
def quire_options() -> Iterable[Option]:
    """Which folder."""
    yield Option("folder", str, "adapters", "folder that holds a folder per adapter")


@hookimpl
def quire_resolve_adapter(name: str, options: Mapping[str, Any]) -> AdapterSource | None:
    """The folder of that name, if it lies directly in ours; its revision is when its config last changed."""
    folder = Path(options["folder"]) / name
    if folder.resolve().parent != Path(options["folder"]).resolve() or not (folder / CONFIG).is_file():
        return None
    return AdapterSource(folder, revision=str((folder / CONFIG).stat().st_mtime_ns))
