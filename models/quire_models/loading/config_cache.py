"""Keeps parsed configs as JSON files: transformers, whose classes parse them, takes longer to import than a small model
takes to load.

A file is named by a digest of config.json and transformers' version. It has every public attribute of the config that
is data, so that the copy answers as the config would; methods are not there.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from quire.files import FileRefused, read_bytes, read_json

_FORMAT = b"quire config 2"
"""Part of the digest; to change when other files are written for the same config.json."""

MAX_BYTES = 16 << 20
OLD_SECONDS = 30 * 24 * 3600
"""Age at which a file is deleted when another is written."""


def cached(file: Path, cache: Path, parse: Callable[[], Any]) -> SimpleNamespace:
    """The config of the config.json `file`, from the folder `cache` if it is there; else a copy of `parse()`.

    Raises what `parse` raises. A cache that cannot be read or written is not used.
    """
    place = cache / f"{_digest(file)}.json"
    with suppress(FileRefused, ValueError, KeyError, TypeError, AttributeError):
        found = _decoded(read_json(place, MAX_BYTES))
        if isinstance(found, SimpleNamespace):
            return found
    encoded = _encoded(parse())
    with suppress(OSError):
        _write(json.dumps(encoded), place)
    copy: SimpleNamespace = _decoded(encoded)
    return copy


@cache  # the file of the distribution is parsed for it
def _version() -> str:
    return metadata.version("transformers")


def _digest(file: Path) -> str:
    digest = hashlib.sha256(_FORMAT + _version().encode() + b"\0")
    with suppress(FileRefused):  # `parse` raises the error
        digest.update(read_bytes(file, MAX_BYTES))
    return digest.hexdigest()[:32]


def _write(text: str, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    for path in place.parent.glob("*.json"):
        if path.stat().st_mtime < time.time() - OLD_SECONDS:
            path.unlink(missing_ok=True)
    descriptor, name = tempfile.mkstemp(dir=place.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(name, place)


def _encoded(value: Any) -> Any:
    """A value as JSON can represent it, without loss. Raises TypeError if that is not possible."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_encoded(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_encoded(item) for item in value]}
    if isinstance(value, Mapping):
        return {"mapping": [[_encoded(key), _encoded(item)] for key, item in value.items()]}
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, SimpleNamespace) or hasattr(value, "to_dict"):
        return {"config": dict(_attributes(value))}
    raise TypeError(f"{value!r:.80} is not data")


def _attributes(config: Any) -> Iterator[tuple[str, Any]]:
    """Names and encoded values of the attributes that are data, under all their names."""
    aliases = getattr(config, "attribute_map", ())
    names = {name for name in (*dir(config), *aliases) if not name.startswith("_")} - {"attribute_map"}
    found = set()
    with _quiet():
        for name in sorted(names):
            with suppress(Exception):  # a property may raise anything
                value = _encoded(getattr(config, name))
                found.add(name)
                yield name, value
        with suppress(Exception):  # what cannot be read as an attribute, such as settings that differ between layers
            for name, given in config.to_dict().items():
                if name not in found:
                    yield name, _encoded(given)


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings of transformers that an attribute is deprecated."""
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "tuple":
        return tuple(_decoded(item) for item in inner)
    if kind == "mapping":
        return {_decoded(key): _decoded(item) for key, item in inner}
    if kind == "dtype":
        import torch

        return getattr(torch, inner)
    return SimpleNamespace(**{name: _decoded(item) for name, item in inner.items()})
