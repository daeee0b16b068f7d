"""Parses `--lora-modules`: the adapters that the server loads at start."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from quire.errors import BadRequest, ConfigError
from quire.hooks.adapter_resolver import CONFIG_FILE, AdapterResolver, base_of, check_name
from quire.hub import adapter_cache
from quire.records import Registry
from quire.settings.model_config import ModelConfig
from quire.settings.server_config import ServerConfig
from quire.types.adapter_info import AdapterInfo

FIELDS = {"name", "path", "base_model_name", "pinned"}
FLAG = "--lora-modules"


def parse_lora_modules(
    models: Sequence[ModelConfig], config: ServerConfig, registry: Registry, wanted: Sequence[ModelConfig] | None = None
) -> list[AdapterInfo]:
    """The adapters to load, checked as far as is possible before the models are loaded. Raises ConfigError.

    wanted: only adapters of these models are returned; None = all.
    """
    if not config.lora_modules:
        return []
    if not registry.by_hook("quire_adapter_runtimes"):
        raise ConfigError(f"{FLAG} needs an adapter runtime: add --enable-lora.")
    resolver = AdapterResolver(registry, adapter_cache(config.lora_cache_dir))
    found: dict[str, AdapterInfo] = {}
    for entry in _entries(config.lora_modules):
        info = _parse_entry(entry, models, resolver)
        if info.name in found or any(info.name in model.served_model_name for model in models):
            raise ConfigError(f"{FLAG}: the name {info.name!r} is used twice.")
        found[info.name] = info
    names = {model.name for model in (models if wanted is None else wanted)}
    return [info for info in found.values() if info.model in names]


def _entries(given: Iterable[str]) -> Iterable[dict[str, Any]]:
    """Each entry as an object: from name=path, a JSON object, or a JSON list of objects (as YAML gives one)."""
    for text in given:
        if not text.lstrip().startswith(("{", "[")):
            name, equals, path = text.partition("=")
            if not equals:
                raise ConfigError(f"{FLAG} takes name=folder or a JSON object, got {text!r}.")
            yield {"name": name, "path": path}
            continue
        try:
            value = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{FLAG}: {text!r} is not JSON: {error}") from error
        yield from value if isinstance(value, list) else [value]


def _parse_entry(entry: Any, models: Sequence[ModelConfig], resolver: AdapterResolver) -> AdapterInfo:
    texts = (entry.get(name, "") for name in ("name", "path", "base_model_name")) if isinstance(entry, dict) else [None]
    if not all(isinstance(text, str) for text in texts) or not entry.get("name") or not entry.get("path"):
        raise ConfigError(f"{FLAG}: an adapter needs a `name` and a `path`, both strings; got {entry!r}.")
    if unknown := sorted(entry.keys() - FIELDS):
        raise ConfigError(f"{FLAG}: unknown field {unknown[0]!r}; the fields are {', '.join(sorted(FIELDS))}.")
    name, path, bases = entry["name"], entry["path"], _model_names(models)
    try:
        check_name(name)
        folder = resolver.folder(path) or _from_plugins(path, models, resolver)
    except BadRequest as error:
        raise ConfigError(f"{FLAG}: {error.message}") from error
    base_name = entry.get("base_model_name")
    base = next((model for model, names in bases.items() if base_name in names), None) if base_name else None
    base = base or (None if base_name else base_of(folder, bases))
    if base is None:
        raise ConfigError(
            f"{FLAG}: the adapter {name!r} needs a `base_model_name`; the models are {', '.join(bases) or 'none'}."
        )
    return AdapterInfo(name=name, model=base, path=str(folder), pinned=bool(entry.get("pinned", False)))


def _from_plugins(path: str, models: Sequence[ModelConfig], resolver: AdapterResolver) -> Path:
    if Path(path).expanduser().is_dir():
        raise ConfigError(f"{FLAG}: the folder {path!r} has no {CONFIG_FILE}.")
    if _is_path(path):
        raise ConfigError(f"{FLAG}: there is no folder {path!r}.")
    check_name(path, with_owner=True)
    for model in models:
        folder = resolver.find(path, model.model)
        if folder is not None:
            return folder
    raise ConfigError(f"{FLAG}: there is no folder {path!r}, and no plugin found an adapter of that name.")


def _is_path(text: str) -> bool:
    """Whether a text can only be a path: a hub id has at most one slash and does not begin with a dot or slash."""
    return text.startswith(("/", ".", "~")) or text.count("/") > 1 or "\\" in text


def _model_names(models: Sequence[ModelConfig]) -> dict[str, list[str]]:
    """By the name of each model: all names under which an adapter's files may refer to it."""
    return {model.name: [*model.served_model_name, model.model] for model in models}
