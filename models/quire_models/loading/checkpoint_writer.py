"""Writes a model folder: tensors in shards of safetensors with an index, and the other files of the original."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from quire.errors import CheckpointError, ConfigError

SHARD_BYTES = 2 << 30
"""A shard is written when it has this size; its tensors are in memory until then."""

_WEIGHT_SUFFIXES = (".bin", ".gguf", ".h5", ".msgpack", ".onnx", ".ot", ".pt", ".pth", ".safetensors")
_REPLACED = ("config.json", "model.safetensors.index.json", "pytorch_model.bin.index.json")


class ShardWriter:
    """Collects tensors and writes `model-….safetensors` into a folder."""

    def __init__(self, folder: Path, shard_bytes: int = SHARD_BYTES) -> None:
        self._folder, self._limit = folder, shard_bytes
        self._pending: dict[str, Tensor] = {}
        self._size = self._total = 0
        self._shards: list[list[str]] = []

    def add(self, name: str, tensor: Tensor) -> None:
        """Add one tensor to the checkpoint."""
        size = tensor.numel() * tensor.element_size()
        if self._pending and self._size + size > self._limit:
            self._flush()
        self._pending[name] = tensor.detach().contiguous()
        self._size += size
        self._total += size

    def finish(self) -> None:
        """Write what is left, and the index if there are several shards."""
        self._flush()
        count, index = len(self._shards), {}
        for number, names in enumerate(self._shards, 1):
            file = "model.safetensors" if count == 1 else f"model-{number:05}-of-{count:05}.safetensors"
            self._shard(number).chmod(0o644)  # safetensors makes files that only their owner can read
            self._shard(number).rename(self._folder / file)
            index.update(dict.fromkeys(names, file))
        if count > 1:
            text = json.dumps({"metadata": {"total_size": self._total}, "weight_map": index}, indent=2)
            (self._folder / "model.safetensors.index.json").write_text(text + "\n")

    def _shard(self, number: int) -> Path:
        return self._folder / f"shard-{number}"

    def _flush(self) -> None:
        from safetensors.torch import save_file

        self._shards.append(list(self._pending))
        save_file(self._pending, self._shard(len(self._shards)), metadata={"format": "pt"})
        self._pending, self._size = {}, 0


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` to write into. It becomes `out` at the end, and is removed if an error is raised.

    Raises ConfigError if `out` exists and is not an empty folder, or cannot be made.
    """
    if out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir()))):
        raise ConfigError(f"{out} exists and is not an empty folder; choose another.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error}.") from error
    try:
        yield unfinished
        unfinished.chmod(0o755)
        unfinished.rename(out)
    except OSError as error:
        raise CheckpointError(f"{out} cannot be written: {error}.") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def copy_other_files(source: Path, target: Path) -> None:
    """Copy tokenizer, templates, settings and folders; not the weights of the model nor what is written anew."""
    for file in sorted(source.rglob("*")):
        inside = file.relative_to(source)
        if any(part.startswith(".") for part in inside.parts) or not file.is_file():
            continue
        is_weight = file.suffix in _WEIGHT_SUFFIXES and not (file.suffix == ".safetensors" and len(inside.parts) > 1)
        if is_weight or (len(inside.parts) == 1 and file.name in _REPLACED):
            continue
        (target / inside).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target / inside)


def write_config(target: Path, config: Mapping[str, Any]) -> None:
    """Write the settings of a model to its config.json."""
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (target / "config.json").write_text(text + "\n", encoding="utf-8")
