"""How a setting is declared, and what its value must keep to."""

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
    """A field of a config with its help text. also: other names of its flag and YAML key, as vLLM has them."""
    metadata = {"help": help, "choices": choices, "metavar": metavar, "also": also}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def check_choices(config: Any) -> None:
    """ConfigError for a value that is none of its setting's choices."""
    for f in fields(config):
        choices, value = f.metadata.get("choices"), getattr(config, f.name)
        if choices and value not in choices:
            raise ConfigError(f"--{f.name.replace('_', '-')} must be one of {', '.join(choices)}; got {value!r}.")


def check_positive(config: Any, *names: str) -> None:
    """ConfigError for a number of these that is given and not above 0."""
    for name in names:
        value = getattr(config, name)
        if value is not None and value <= 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be above 0; got {value}.")
