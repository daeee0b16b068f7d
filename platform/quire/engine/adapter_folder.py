"""The folder of an adapter: what kind it says it is, and whether its files are still those that were read.

It reads nothing but the configuration's `peft_type`; the rest is the runtime's affair.
"""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path

from quire.errors import BadRequest

CONFIG_FILE = "adapter_config.json"
MAX_CONFIG_BYTES = 1 << 20
MAX_FILES = 1000

Fingerprint = tuple[tuple[str, int, int, int], ...]
"""Name, size, time of change in ns and inode of each file of a folder."""


def kind_of(folder: Path) -> str:
    """The `peft_type` of an adapter's folder. Raises BadRequest when it is none."""
    path = folder / CONFIG_FILE
    try:
        text = path.read_text(encoding="utf-8") if path.stat().st_size <= MAX_CONFIG_BYTES else ""
        kind = json.loads(text)["peft_type"]
    except OSError as error:
        raise BadRequest(
            f"{folder} is no adapter: {CONFIG_FILE} cannot be read ({error.strerror}).", "lora_path"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadRequest(f"{path} must be a JSON object of at most 1 MiB with a `peft_type`.", "lora_path") from error
    return str(kind)


def fingerprint(folder: Path) -> Fingerprint:
    """Equal as long as nobody changed, added or removed files. Raises BadRequest when the folder cannot be read."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.stat()) for entry in islice(entries, MAX_FILES) if entry.is_file()]
    except OSError as error:
        raise BadRequest(f"The adapter's folder {folder} cannot be read ({error.strerror}).", "lora_path") from error
    return tuple(sorted((name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in found))
