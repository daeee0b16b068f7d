"""The folder of an adapter: what kind it says it is, and whether its files are still those that were read.

It reads nothing but the configuration's `peft_type`; the rest is the runtime's affair. Both functions run apart
(`quire.isolation`).
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
MAX_KIND = 60

Fingerprint = tuple[tuple[str, int, int, int], ...]
"""Name, size, time of change in ns and inode of each file of a folder."""


def kind_of(folder: str) -> str:
    """The `peft_type` of an adapter's folder. Raises BadRequest when it is none."""
    try:
        given = files.read_json(Path(folder) / CONFIG_FILE, MAX_CONFIG_BYTES)
    except files.FileRefused as error:
        raise BadRequest(f"That is no adapter: {CONFIG_FILE} cannot be used: {error}.", "lora_path") from error
    kind = given.get("peft_type") if isinstance(given, dict) else None
    if not isinstance(kind, str) or len(kind) > MAX_KIND:
        raise BadRequest(f"{CONFIG_FILE} must be a JSON object with a `peft_type`.", "lora_path")
    return kind


def fingerprint(folder: str) -> Fingerprint:
    """Equal as long as nobody changed, added or removed files. Raises BadRequest when the folder cannot be read."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.stat()) for entry in islice(entries, MAX_FILES) if entry.is_file()]
    except OSError as error:
        raise BadRequest(f"The adapter's folder cannot be read ({error.strerror}).", "lora_path") from error
    return tuple(sorted((name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in found))
