"""Declares a setting as a field of a config, and checks values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, fields
from typing import Any

from quire.errors import ConfigError


def setting(
    help: str,
    default: Any = None,
    *,
    choices: Sequence[str] | None = None,
    metavar: str | None = None,
    also: Sequence[str] = (),
) -> Any:
    """A field with a help text. also: other names of its flag and YAML key, for compatibility with vLLM."""
    metadata = {"help": help, "choices": choices, "metavar": metavar, "also": also}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def check_choices(config: Any) -> None:
    """Raise ConfigError for a value that is not one of the choices of its setting; None is allowed."""
    for f in fields(config):
        choices, value = f.metadata.get("choices"), getattr(config, f.name)
        if choices and value is not None and value not in choices:
            raise ConfigError(f"--{f.name.replace('_', '-')} must be one of {', '.join(choices)}; got {value!r}.")


def check_positive(config: Any, *names: str) -> None:
    """Raise ConfigError for a number that is not above 0; None is allowed."""
    for name in names:
        value = getattr(config, name)
        if value is not None and value <= 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be above 0; got {value}.")
