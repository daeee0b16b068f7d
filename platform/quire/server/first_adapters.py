"""The adapters that a server starts with: what `--lora-modules` says, as orders for the host. It imports no server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from quire.adapter_info import AdapterInfo
from quire.adapter_sources import CONFIG_FILE, AdapterSources, base_of, check_name
from quire.config import ModelConfig
from quire.errors import BadRequest, ConfigError
from quire.hub import adapter_cache
from quire.records import Registry
from quire.server_config import ServerConfig

FIELDS = {"name", "path", "base_model_name", "pinned"}
FLAG = "--lora-modules"


def first_adapters(models: Sequence[ModelConfig], config: ServerConfig, registry: Registry) -> list[AdapterInfo]:
    """What to load, checked as far as it can be before there are models. Raises ConfigError."""
    if not config.lora_modules:
        return []
    if not registry.of("quire_adapter_runtimes"):
        raise ConfigError(f"{FLAG} needs an adapter runtime: add --enable-lora.")
    sources = AdapterSources(registry, adapter_cache(config.lora_cache_dir))
    found: dict[str, AdapterInfo] = {}
    for entry in _entries(config.lora_modules):
        info = _order(entry, models, sources)
        if info.name in found or any(info.name in model.served_model_name for model in models):
            raise ConfigError(f"{FLAG}: the name {info.name!r} is given twice.")
        found[info.name] = info
    return list(found.values())


def _entries(given: Iterable[str]) -> Iterable[dict[str, Any]]:
    """name=path, a JSON object, or a JSON list of objects (as YAML makes one)."""
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


def _order(entry: Any, models: Sequence[ModelConfig], sources: AdapterSources) -> AdapterInfo:
    texts = (entry.get(name, "") for name in ("name", "path", "base_model_name")) if isinstance(entry, dict) else [None]
    if not all(isinstance(text, str) for text in texts) or not entry.get("name") or not entry.get("path"):
        raise ConfigError(f"{FLAG}: an adapter needs a `name` and a `path`, which are texts; got {entry!r}.")
    if unknown := sorted(entry.keys() - FIELDS):
        raise ConfigError(f"{FLAG}: unknown setting {unknown[0]!r}; known are {', '.join(sorted(FIELDS))}.")
    name, path, bases = entry["name"], entry["path"], _called(models)
    try:
        check_name(name)
        folder = sources.folder(path) or _from_plugins(path, models, sources)
    except BadRequest as error:
        raise ConfigError(f"{FLAG}: {error.message}") from error
    wanted = entry.get("base_model_name")
    base = next((model for model, called in bases.items() if wanted in called), None) if wanted else None
    base = base or (None if wanted else base_of(folder, bases))
    if base is None:
        raise ConfigError(
            f"{FLAG}: say in `base_model_name` which model {name!r} is for: {', '.join(bases) or 'none is served'}."
        )
    return AdapterInfo(name=name, model=base, path=str(folder), pinned=bool(entry.get("pinned", False)))


def _from_plugins(path: str, models: Sequence[ModelConfig], sources: AdapterSources) -> Path:
    if Path(path).expanduser().is_dir():
        raise ConfigError(f"{FLAG}: the folder {path!r} has no {CONFIG_FILE}.")
    if _is_path(path):
        raise ConfigError(f"{FLAG}: there is no folder {path!r}.")
    check_name(path, with_owner=True)
    for model in models:
        folder = sources.find(path, model.model)
        if folder is not None:
            return folder
    raise ConfigError(f"{FLAG}: there is no folder {path!r}, and no plugin knows an adapter of that name.")


def _is_path(text: str) -> bool:
    """Whether a text can only mean a folder: hub ids have one slash at most, and do not begin with a dot or slash."""
    return text.startswith(("/", ".", "~")) or text.count("/") > 1 or "\\" in text


def _called(models: Sequence[ModelConfig]) -> dict[str, list[str]]:
    """By the name that the host gives each model: all that files may call it."""
    return {model.name: [*model.served_model_name, model.model] for model in models}
