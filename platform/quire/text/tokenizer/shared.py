"""Tokenizers that models share: one may take a hundred MiB, and its library holds the GIL while it reads the file."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from weakref import WeakValueDictionary

from quire.text.tokenizer.files import read_files
from quire.text.tokenizer.tokenizer import Tokenizer


class SharedTokenizers:
    """Loads tokenizers. Models with equal files get the same one, as long as any of them uses it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: WeakValueDictionary[Hashable, Tokenizer] = WeakValueDictionary()

    def load(self, folder: Path, mode: str, trust_remote_code: bool) -> Tokenizer:
        """The tokenizer of a model folder. Parameters and errors: `Tokenizer.load`."""
        with self._lock:
            key = _contents(folder) if mode == "auto" and not trust_remote_code else None
            found = self._known.get(key)
            if found is None:
                found = Tokenizer.load(folder, mode, trust_remote_code)
                if key is not None and key == _contents(folder):  # the files did not change meanwhile
                    self._known[key] = found
            return found


def _contents(folder: Path) -> Hashable:
    """What a tokenizer is made from; None without a tokenizer.json."""
    with suppress(OSError), (folder / "tokenizer.json").open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest(), repr(read_files(folder))
    return None
