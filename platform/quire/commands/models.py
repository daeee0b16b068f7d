"""The models that a command works with: those that the user named, or the demos of the loaded plugins."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from quire.errors import ConfigError
from quire.hooks.demos import demo_items, from_demo
from quire.records import DemoModel, Registry
from quire.settings.model_config import ModelConfig
from quire.settings.options import model_configs


def named_models(values: Mapping[str, Any], registry: Registry) -> list[ModelConfig]:
    """The models named in the settings, which may include demos. Raises ConfigError."""
    return [from_demo(config, registry) for config in model_configs(values)]


def demo_models(values: Mapping[str, Any], registry: Registry, *, max_models: int | None = None) -> list[ModelConfig]:
    """One model per demo, in order of names, at most `max_models`; the settings apply to all. Raises ConfigError."""
    return model_configs({**values, "models": demo_items(registry)[:max_models]})


def demo_adapters(registry: Registry) -> list[str]:
    """The adapters of the demos, as values of `--lora-modules`."""
    demos: list[DemoModel] = list(registry.all("quire_demo_models"))
    return [
        json.dumps({"name": name, "path": str(path), "base_model_name": demo.name})
        for demo in demos
        for name, path in demo.adapters().items()
    ]


def chosen_models(values: Mapping[str, Any], registry: Registry, *, max_models: int | None = None) -> list[ModelConfig]:
    """The named models, or up to `max_models` demos if none is named. Raises ConfigError if there are neither."""
    chosen = named_models(values, registry) or demo_models(values, registry, max_models=max_models)
    if not chosen:
        loaded = ", ".join(plugin.name for plugin in registry.plugins) or "none"
        raise ConfigError(f"No model was given, and no loaded plugin has a demo model (loaded plugins: {loaded}).")
    return chosen
