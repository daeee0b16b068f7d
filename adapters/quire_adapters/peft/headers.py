"""Reads what an adapter's folder says without its numbers: the configuration, and names, types and shapes of tensors.

Both functions are for isolated processes and return plain data. They apply the limits that `tensor_files` applies.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quire import files
from quire.errors import BadRequest
from quire_adapters.peft import config as configs, tensor_files
from quire_adapters.peft.config import PeftConfig
from quire_adapters.peft.targets import compute_ranks
from quire_adapters.peft.tensor_files import SAFETENSORS, TORCH

MAX_TENSORS = 1 << 20


def read(folder: str) -> dict[str, Any]:
    """An object of config (adapter_config.json as it is), file, bytes (of the file), and tensors: (name, dtype, shape).

    Raises BadRequest for a folder without an adapter, and for a malformed one.
    """
    try:
        given = files.read_json(Path(folder) / configs.FILE, configs.MAX_BYTES)
    except files.FileRefused as error:
        raise BadRequest(f"{configs.FILE} cannot be used: {error}.", "lora_path") from error
    if not isinstance(given, dict):
        raise BadRequest(f"{configs.FILE} must be a JSON object.", "lora_path")
    for name, parse in ((SAFETENSORS, tensor_files.spans_of), (TORCH, tensor_files.shapes_of)):
        try:
            with files.open_regular(Path(folder) / name) as descriptor:
                size = os.fstat(descriptor).st_size
                found = parse(descriptor, size, MAX_TENSORS)
        except files.FileRefused as error:
            if error.missing:
                continue
            raise BadRequest(f"{name} cannot be used: {error}.", "lora_path") from error
        tensors = [(span.name, span.dtype, list(span.shape)) for span in found]
        return {"config": given, "file": name, "bytes": size, "tensors": tensors}
    raise BadRequest(f"The adapter has no tensors: {SAFETENSORS} (or {TORCH}) was expected.", "lora_path")


def read_lora(folder: str, names: Sequence[str]) -> dict[str, Any]:
    """An object of config (fields of `PeftConfig`) and ranks (`lora_pairs.Ranks`) for the tensors with these names.

    Raises BadRequest if the configuration is malformed or of a variant that is not supported.
    """
    given = configs.read(Path(folder))
    return {"config": given, "ranks": compute_ranks(PeftConfig(**given), names)}
