"""Plugin lora-folder: adapters by name from a folder on this disk, `<path>/<name>/adapter_config.json`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from quire.hookspecs import hookimpl
from quire.records import AdapterSource, Option

CONFIG = "adapter_config.json"


@hookimpl
def quire_options() -> Iterable[Option]:
    """Which folder; without one the plugin knows no adapter."""
    yield Option("path", str, "", "folder that holds a folder for each adapter; requests may name any of them")


@hookimpl
def quire_resolve_adapter(name: str, options: Mapping[str, Any]) -> AdapterSource | None:
    """The folder of that name, or of that owner and name; its revision is when a file in it last changed.

    Links in the folder are followed, for its owner put them there; names that lead out of it are not.
    """
    if not options["path"]:
        return None
    root = Path(options["path"]).expanduser()
    folder = root / name
    if root not in Path(os.path.normpath(folder)).parents or not (folder / CONFIG).is_file():
        return None
    newest = max(file.stat().st_mtime_ns for file in folder.iterdir())
    return AdapterSource(folder, revision=str(newest))
