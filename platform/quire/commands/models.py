"""Which models a command works with: those the user named, else the demos of the loaded plugins."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from quire.config import ModelConfig
from quire.demos import demo_items, from_demo
from quire.errors import ConfigError
from quire.options import model_configs
from quire.records import DemoModel, Registry


def named_models(values: Mapping[str, Any], registry: Registry) -> list[ModelConfig]:
    """The models that settings name, some of which may be demos. Raises ConfigError."""
    return [from_demo(config, registry) for config in model_configs(values)]


def demo_models(values: Mapping[str, Any], registry: Registry, *, most: int | None = None) -> list[ModelConfig]:
    """One model for each demo, the first `most` by name; settings hold as for named models. Raises ConfigError."""
    return model_configs({**values, "models": demo_items(registry)[:most]})


def demo_adapters(registry: Registry) -> list[str]:
    """The adapters of those demos, as `--lora-modules` takes them."""
    demos: list[DemoModel] = list(registry.all("quire_demo_models"))
    return [
        json.dumps({"name": name, "path": str(path), "base_model_name": demo.name})
        for demo in demos
        for name, path in demo.adapters().items()
    ]


def chosen_models(values: Mapping[str, Any], registry: Registry, *, most: int | None = None) -> list[ModelConfig]:
    """The named models, else the demos, of which the first `most`. Raises ConfigError when there are neither."""
    chosen = named_models(values, registry) or demo_models(values, registry, most=most)
    if not chosen:
        loaded = ", ".join(plugin.name for plugin in registry.plugins) or "none"
        raise ConfigError(f"No model was named and no loaded plugin has a demo model (plugins loaded: {loaded}).")
    return chosen
