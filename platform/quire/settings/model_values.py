"""The values of settings: how texts are parsed, and how the settings of one model are made of them.

Everything that reads settings uses this: the command line, YAML files, and requests that load a model.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

from quire.errors import ConfigError
from quire.from_vllm.arguments import without_vllm_arguments
from quire.settings.model_config import ModelConfig
from quire.settings.model_groups.residency_config import seconds
from quire.settings.near_names import near_name

_UNITS = {"": 1, "k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30, "t": 10**12, "T": 2**40}
_Config = TypeVar("_Config")

OF_ONE_MODEL = ("model", "served_model_name", "tokenizer", "revision", "tokenizer_revision", "chat_template", "load")
"""Settings that name one model or its files, and therefore do not apply to models that are loaded later."""


def flag(name: str) -> str:
    """The flag of a setting: `max_model_len` → `--max-model-len`. A flag, such as `-dp`, is kept."""
    return name if name.startswith("-") else "--" + name.replace("_", "-")


def whole_number(text: str) -> int:
    """Parse an integer with an optional unit: 4096, 4k (= 4000), 4K (= 4096), 1.5G."""
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kKmMgGtT]?)(?:i?B)?", text.strip())
    if not match or ("." in match[1] and not match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number (examples: 4096, 4k, 2G)")
    return int(float(match[1]) * _UNITS[match[2]]) if "." in match[1] else int(match[1]) * _UNITS[match[2]]


def json_map(text: str) -> dict[str, Any]:
    """Parse a JSON object; integers may also be written as image=4,video=1."""
    if re.fullmatch(r"\s*\w+\s*=\s*\d+\s*(,\s*\w+\s*=\s*\d+\s*)*", text):
        return {name.strip(): int(count) for name, _, count in (pair.partition("=") for pair in text.split(","))}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value


def reader_of(hint: Any) -> Callable[[str], Any]:
    """What parses the text of a flag whose setting has this type hint."""
    for word, reader in (("Mapping", json_map), ("Seconds", seconds), ("int", whole_number), ("float", float)):
        if word in str(hint):
            return reader
    return str


@cache
def _type_hints() -> Mapping[str, Any]:
    return get_type_hints(ModelConfig)  # takes a millisecond


def typed_value(name: str, value: Any) -> Any:
    """The value of a setting of one model, in its type; a text is read as the flag would read it.

    Raises ConfigError for a value of another type.
    """
    hint = _type_hints()[name]
    is_list, reader = hint == tuple[str, ...], reader_of(hint)
    if value is None and type(None) in get_args(hint):
        return None
    if isinstance(value, str) and hint is not bool and reader is not str:
        try:
            return reader(value)
        except (ValueError, argparse.ArgumentTypeError) as error:
            raise ConfigError(f"{flag(name)}: {error}.") from error
    if is_list and isinstance(value, str):
        return (value,)
    wanted, words = (bool, "true or false") if hint is bool else _TYPES[reader]
    wanted, words = ((list, tuple), "a list of texts") if is_list else (wanted, words)
    fits = isinstance(value, wanted) and (hint is bool or not isinstance(value, bool))
    if not fits or (is_list and not all(isinstance(item, str) for item in value)):
        raise ConfigError(f"{flag(name)} must be {words}; got {value!r:.100}.")
    return tuple(value) if is_list else float(value) if reader in (float, seconds) else value


_TYPES: Mapping[Callable[[str], Any], tuple[Any, str]] = {
    json_map: (Mapping, "a JSON object"),
    whole_number: (int, "a whole number"),
    float: ((int, float), "a number"),
    seconds: ((int, float), "a time, such as 300, 5m or forever"),
    str: (str, "a text"),
}


def read_config(config: type[_Config], values: Mapping[str, Any]) -> _Config:
    """Build a config from parsed values; other keys are ignored. Raises ConfigError."""
    names = {f.name for f in fields(config)}  # type: ignore[arg-type]
    picked = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in names}
    return config(**picked)


def model_config(values: Mapping[str, Any], item: Mapping[str, Any]) -> ModelConfig:
    """One model. values: settings of the command line, which apply to all models. item: `name`, `model` or `path`, and
    settings of this model, as in `--models`. Raises ConfigError.
    """
    settings = without_vllm_arguments({key.replace("-", "_"): value for key, value in item.items()})
    known = {f.name for f in fields(ModelConfig)}
    name = settings.pop("name", None)
    if "path" in settings:
        settings["model"] = settings.pop("path")
    unknown = sorted(set(settings) - known)
    if unknown:
        near = near_name(unknown[0], known)
        hint = f"did you mean {near!r}?" if near else "`platform serve --help` lists them."
        raise ConfigError(f"models: {name or settings.get('model', '')}: unknown setting {unknown[0]!r}; {hint}")
    if not settings.get("model"):
        raise ConfigError(f"models: {name or item!r} needs a `model` (a folder or hub id).")
    settings = {key: typed_value(key, value) for key, value in settings.items()}
    served = tuple(settings.pop("served_model_name", None) or values.get("served_model_name") or ())
    if name is not None:
        served = (name, *(alias for alias in served if alias != name))
    base = read_config(ModelConfig, values)
    merged = {f.name: getattr(base, f.name) for f in fields(ModelConfig)}
    return ModelConfig(**{**merged, **settings, "served_model_name": served or (settings["model"],)})
