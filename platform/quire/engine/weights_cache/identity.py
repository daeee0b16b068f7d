"""What the content of a cached file depends on: the checkpoint, the settings of the load, and the kernels."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from quire.errors import CheckpointError
from quire.files import FileRefused, open_regular, read_bytes
from quire.settings.model_config import ModelConfig
from quire_kernels.select import Ops

HEAD_BYTES, SAMPLE_BYTES, SAMPLES = 1 << 20, 4096, 256
"""What is hashed of a file: its first bytes, where headers are, and that many samples from all of it."""

MAX_CONFIG_BYTES = 16 << 20


def identity(
    files: Iterable[Path], folder: Path, config: ModelConfig, ops: Ops, dtype: str, part: str, libraries: str
) -> Mapping[str, Any]:
    """What the weights depend on, as JSON.

    files: of the weights. folder: of config.json. part: which part of the model a rank has. libraries: the compiled
    kernels. Raises CheckpointError if a file cannot be read.

    A file that was written again differs in its times (even if it has the old modification time, the system has noted
    when that was set), so its content is not read, except its header and samples.
    """
    try:
        described = [_file(file) for file in files]
    except (FileRefused, OSError) as error:
        raise CheckpointError(f"a file of the weights cannot be read: {error}") from error
    found = {
        "files": described,
        "config": _digest(folder / "config.json"),
        "dtype": dtype,
        "quantization": [
            config.quantization,
            config.quantization_group_size,
            list(config.quantization_ignore),
            config.activation_bits,
        ],
        "part": part,
        "ops": [[choice.op, choice.plugin, choice.name] for choice in ops.report],
        "libraries": libraries,
        "plugins": _plugins(),
    }
    made: Mapping[str, Any] = json.loads(json.dumps(found))  # as it is read from a file
    return made


def name_of(found: Mapping[str, Any]) -> str:
    """A name for files of this identity."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:32]


def _file(path: Path) -> list[Any]:
    with open_regular(path) as descriptor:
        status = os.fstat(descriptor)
        digest = hashlib.sha256(os.pread(descriptor, HEAD_BYTES, 0))
        for i in range(SAMPLES):
            digest.update(os.pread(descriptor, SAMPLE_BYTES, status.st_size * i // SAMPLES))
    return [path.name, status.st_size, status.st_mtime_ns, status.st_ctime_ns, digest.hexdigest()]


@cache
def _plugins() -> list[tuple[str, str]]:
    """Names and versions of the distributions that bring plugins."""
    found = {id(point.dist): point.dist for point in entry_points(group="quire") if point.dist}
    return sorted({(each.name, each.version) for each in found.values()})


def _digest(path: Path) -> str | None:
    with suppress(FileRefused):
        return hashlib.sha256(read_bytes(path, MAX_CONFIG_BYTES)).hexdigest()
    return None
