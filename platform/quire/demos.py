"""The demo models of loaded plugins, as settings name models: a demo's name stands for its folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from quire.config import ModelConfig
from quire.errors import ConfigError
from quire.near_names import near_name
from quire.records import DemoModel, Registry


def demo_items(registry: Registry) -> list[dict[str, Any]]:
    """One model for each demo there is, in the order of their names, as `--models` takes them."""
    demos: list[DemoModel] = sorted(registry.all("quire_demo_models"), key=lambda demo: demo.name)
    return [{"name": demo.name, "model": str(demo.folder())} for demo in demos]


def from_demo(config: ModelConfig, registry: Registry) -> ModelConfig:
    """A model that is called as a demo is, in that demo's folder. A folder of the same name comes before it.

    Raises ConfigError for what is neither a folder nor an owner/name, but nearly the name of a demo.
    """
    demos = registry.of("quire_demo_models")
    demo: DemoModel | None = demos.get(config.model)
    if Path(config.model).exists():
        return config
    if demo is None:
        near = None if "/" in config.model else near_name(config.model, demos)
        if near is not None:
            raise ConfigError(f"There is no model {config.model!r}. Did you mean the demo {near!r}?")
        return config
    return replace(config, model=str(demo.folder()), served_model_name=config.served_model_name or (demo.name,))
