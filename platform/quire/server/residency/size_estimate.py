"""How much memory a model will take, from the headers of its files and its config, before it is loaded.

The weights are exact for checkpoints in safetensors that are loaded as they are stored, and an upper bound otherwise.
What a sequence takes of the KV cache is known for attention with heads of equal sizes; other models count without.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.errors import ConfigError
from quire.files import MAX_JSON_BYTES, FileRefused, open_regular, parse_json, read_json
from quire.settings.model_config import ModelConfig

MAX_HEADER_BYTES = 100 << 20
"""The largest header that the format of safetensors allows."""

MAX_KV_PART = 0.25
MAX_KV_BYTES = 4 << 30
"""The default KV cache of a model takes at most this part of the memory, and so many bytes."""

_FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes of a number by its type in safetensors; tensors of other types are quantized and keep their size."""

_SIZES = {"half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4}


@dataclass(frozen=True, kw_only=True)
class SizeEstimate:
    """Bytes of the weights and of the largest tensor, and of one token and the longest sequence in the KV cache."""

    weights: int = 0
    largest_tensor: int = 0
    per_token: int = 0
    sequence: int = 0

    def kv_cache(self, config: ModelConfig, limit: float, num_models: int) -> int:
        """Bytes of the KV cache that the model will get of `limit` bytes for `num_models` models."""
        if config.kv_cache_memory_bytes is not None:
            return config.kv_cache_memory_bytes
        if config.num_pages is not None:
            return config.num_pages * config.page_size * self.per_token
        if not math.isfinite(limit):
            return 0
        most = min(int(MAX_KV_PART * limit), MAX_KV_BYTES)
        wanted = max(most // max(1, num_models), min(self.sequence, most))
        return min(wanted, config.max_num_seqs * self.sequence)


def estimate(config: ModelConfig) -> SizeEstimate:
    """The sizes of a model; zeros for one whose files are not here or cannot be read, which loading reports.

    Raises ConfigError if there is no such folder or file, and it is not a hub id either.
    """
    path = Path(config.model).expanduser()
    if not path.exists():
        if config.model.startswith(("/", ".", "~")):
            raise ConfigError(f"{config.name}: there is no folder or file {config.model!r}.")
        return SizeEstimate()
    if path.is_file():
        return SizeEstimate(weights=path.stat().st_size)
    try:
        tensors = list(_tensors(path, config))
        per_token, length = _of_config(path, config)
    except (FileRefused, OSError, ValueError, KeyError, TypeError, AttributeError):
        return SizeEstimate()
    return SizeEstimate(
        weights=sum(tensors),
        largest_tensor=max(tensors, default=0),
        per_token=per_token,
        sequence=per_token * (config.max_model_len or length),
    )


def _tensors(folder: Path, config: ModelConfig) -> Iterator[int]:
    """Bytes of each tensor in the data type that the model runs in, or of each file of another format."""
    found = False
    for file in sorted(folder.glob("*.safetensors")):
        found = True
        for name, entry in _header(file).items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            stored = _FLOATS.get(entry["dtype"])
            wanted = None if config.quantization else _SIZES.get(config.dtype)
            yield (end - begin) * (wanted or stored) // stored if stored else end - begin
    if not found:
        yield from (file.stat().st_size for pattern in ("*.bin", "*.gguf") for file in sorted(folder.glob(pattern)))


def _header(file: Path) -> Mapping[str, Any]:
    with open_regular(file) as descriptor, open(descriptor, "rb", closefd=False) as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise FileRefused("its header is too long")
        header = parse_json(opened.read(length))
    if not isinstance(header, Mapping):
        raise FileRefused("its header is no object")
    return header


def _of_config(folder: Path, config: ModelConfig) -> tuple[int, int]:
    """Bytes of one token in the KV cache, and the longest sequence; zeros where the config does not say."""
    found = read_json(folder / "config.json", MAX_JSON_BYTES)
    found = {**found, **(found.get("text_config") or {})}
    heads = found.get("num_attention_heads") or 0
    kv_heads = found.get("num_key_value_heads") or heads
    head_dim = found.get("head_dim") or (found.get("hidden_size", 0) // heads if heads else 0)
    stored = found.get("dtype") or found.get("torch_dtype") or "float32"
    size = {"int8": 1.0, "int4": 0.5}.get(config.kv_cache_dtype) or _SIZES.get(config.dtype) or _SIZES.get(stored, 4)
    per_token = 2 * (found.get("num_hidden_layers") or 0) * kv_heads * head_dim * size
    return int(per_token), int(found.get("max_position_embeddings") or 0)
