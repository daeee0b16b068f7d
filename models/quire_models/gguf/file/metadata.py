"""Typed access to the metadata of a GGUF model. Every error names the file and the key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from quire.errors import CheckpointError
from quire_models.gguf.file.cursor import Texts
from quire_models.gguf.file.reader import GGUFFile

ARCHITECTURE = "general.architecture"
MAX_SIZE = 1 << 31


class Metadata:
    """The metadata of a model's (first) file. Keys without a `general.` or `tokenizer.` are the architecture's own."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        value = file.metadata.get(ARCHITECTURE)
        if not isinstance(value, str):
            raise CheckpointError(f"{file.path} does not say which `{ARCHITECTURE}` its model has.")
        self.architecture = value
        kind = file.metadata.get("general.type", "model")
        if kind != "model":
            raise CheckpointError(f"{file.path} is a GGUF file of the type {kind!r:.40}, not a model.")

    def __contains__(self, key: str) -> bool:
        return self._key(key) in self._file.metadata

    def error(self, key: str, reason: str) -> CheckpointError:
        return CheckpointError(f"{self._file.path}: `{self._key(key)}` {reason}.")

    def unknown_architecture(self, known: Sequence[str]) -> CheckpointError:
        return CheckpointError(
            f"{self._file.path} is a model of the architecture {self.architecture!r:.60}; GGUF files can be read of "
            f"{', '.join(known)}."
        )

    def _key(self, key: str) -> str:
        return key if key.startswith(("general.", "tokenizer.")) else f"{self.architecture}.{key}"

    def get(self, key: str) -> Any:
        """The value; None without the key."""
        return self._file.metadata.get(self._key(key))

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number from 0. An array with one for each block must have equal elements."""
        value = self.get(key)
        if isinstance(value, Sequence) and not isinstance(value, str) and len(value) and len(set(value)) == 1:
            value = value[0]
        if value is None and default is not None:
            return default
        if value is None:
            raise self.error(key, "is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_SIZE:
            raise self.error(key, f"must be one whole number from 0 to {MAX_SIZE - 1}, got {value!r:.60}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """The finite number of a key."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.error(key, "is missing")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.error(key, f"must be a finite number, got {value!r:.60}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, got {value!r:.60}")
        return value

    def text(self, key: str, default: str | None = None) -> str | None:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(key, f"must be a text, got {value!r:.60}")
        return value

    def texts(self, key: str) -> list[str] | None:
        """An array of texts; None without the key."""
        value = self.get(key)
        if value is None:
            return None
        texts = [item for item in value if isinstance(item, str)] if isinstance(value, Texts | list) else None
        if texts is None or len(texts) != len(value):
            raise self.error(key, "must be an array of texts")
        return texts

    def numbers(self, key: str) -> Sequence[float] | None:
        """An array of numbers; None without the key."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, str | Texts) or not isinstance(value, Sequence):
            raise self.error(key, "must be an array of numbers")
        return value
