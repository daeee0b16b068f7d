"""Reads fields of a `quantization_config`, which come from a file: each has a type and values that are possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.plugin import CheckpointError

MAX_DIGITS = 9
"""Digits of a size."""


def wrong(field: str, value: Any, expected: str) -> CheckpointError:
    """The error for the value of a field."""
    return CheckpointError(f"quantization_config: {field} is {shown(value)}, expected {expected}.")


def shown(value: Any) -> str:
    """A value of JSON, cut to a length that fits into a message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def first(config: Mapping[str, Any], names: Sequence[str], default: Any = None) -> Any:
    """The value of the first of these fields that is there and not null."""
    return next((config[name] for name in names if config.get(name) is not None), default)


def integer(config: Mapping[str, Any], names: Sequence[str], default: int | None = None) -> int:
    """A field that is an integer, under the first of its names that is there."""
    value = first(config, names, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(names[0], value, "an integer")
    return value


def flag(config: Mapping[str, Any], name: str, default: bool) -> bool:
    """A field that is true or false."""
    value = first(config, (name,), default)
    if not isinstance(value, bool):
        raise wrong(name, value, "true or false")
    return value


def choice(config: Mapping[str, Any], names: Sequence[str], allowed: Sequence[str], default: str | None = None) -> str:
    """A field that is one of some words, in upper or lower case."""
    value = first(config, names, default)
    if not isinstance(value, str) or value.lower() not in allowed:
        raise wrong(names[0], value, " or ".join(allowed))
    return value.lower()


def group_size(config: Mapping[str, Any], names: Sequence[str], default: int | None = None) -> int:
    """The inputs that share a scale; -1 = all."""
    size = integer(config, names, default)
    if size != -1 and not 0 < size < 10**MAX_DIGITS:
        raise wrong(names[0], size, "a size, or -1 for all inputs")
    return size


def pair(value: Any, field: str) -> tuple[int, int] | None:
    """The two sizes of a block, as a list or as "128x128"; None for null."""
    if value is None:
        return None
    sizes = value.split("x") if isinstance(value, str) else value
    if isinstance(sizes, list | tuple) and len(sizes) == 2:
        height, width = _size(sizes[0]), _size(sizes[1])
        if height and width:
            return height, width
    raise wrong(field, value, "the two sizes of a block")


def refuse(config: Mapping[str, Any], fields: Sequence[str]) -> None:
    """Raises CheckpointError if one of these fields is set: they ask for what is not supported."""
    for field in fields:
        if config.get(field):
            raise CheckpointError(f"quantization_config: {field} = {shown(config[field])} is not supported.")


def _size(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) <= MAX_DIGITS:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**MAX_DIGITS else None
