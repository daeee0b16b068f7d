"""Reads the `peft_type` of an adapter's folder, and takes a fingerprint of its files.

The runtime reads everything else. Both functions are called in a process of their own (`quire.isolation`), so this
module imports little.
"""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from quire import files
from quire.errors import BadRequest

CONFIG_FILE = "adapter_config.json"
MAX_CONFIG_BYTES = 1 << 20
MAX_FILES = 1000
MAX_PEFT_TYPE_CHARS = 60

Fingerprint = tuple[tuple[str, int, int, int], ...]
"""Name, size, time of change in ns, and inode of each file of a folder."""


def read_peft_type(folder: str) -> str:
    """The `peft_type` in a folder's adapter_config.json. Raises BadRequest if there is none."""
    try:
        config = files.read_json(Path(folder) / CONFIG_FILE, MAX_CONFIG_BYTES)
    except files.FileRefused as error:
        raise BadRequest(f"The folder has no adapter: {CONFIG_FILE} cannot be used: {error}.", "lora_path") from error
    peft_type = config.get("peft_type") if isinstance(config, dict) else None
    if not isinstance(peft_type, str) or len(peft_type) > MAX_PEFT_TYPE_CHARS:
        raise BadRequest(f"{CONFIG_FILE} must be a JSON object with a `peft_type`.", "lora_path")
    return peft_type


def fingerprint(folder: str) -> Fingerprint:
    """A value that differs if files were changed, added or removed. Raises BadRequest if the folder is unreadable."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.stat()) for entry in islice(entries, MAX_FILES) if entry.is_file()]
    except OSError as error:
        raise BadRequest(f"The adapter's folder cannot be read ({error.strerror}).", "lora_path") from error
    return tuple(sorted((name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in found))
