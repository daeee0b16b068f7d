"""Plugin lora-folder: finds adapters by name in a local folder, as `<path>/<name>/adapter_config.json`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from quire.plugin import AdapterSource, Option, hookimpl

CONFIG = "adapter_config.json"


@hookimpl
def quire_options() -> Iterable[Option]:
    """The folder. Without one, the plugin finds no adapter."""
    yield Option("path", str, "", "folder with a folder for each adapter; requests may name any of them")


@hookimpl
def quire_resolve_adapter(name: str, options: Mapping[str, Any]) -> AdapterSource | None:
    """The folder `name`, which may be `owner/name`. Its revision is the time of the latest change of a file in it.

    Links in the folder are followed, because the operator put them there. Names that lead out of it are rejected.
    """
    if not options["path"]:
        return None
    root = Path(options["path"]).expanduser()
    folder = root / name
    if root not in Path(os.path.normpath(folder)).parents or not (folder / CONFIG).is_file():
        return None
    newest = max(file.stat().st_mtime_ns for file in folder.iterdir())
    return AdapterSource(folder, revision=str(newest))
