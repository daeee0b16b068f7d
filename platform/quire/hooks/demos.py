"""Demo models of the loaded plugins in the settings of models: the name of a demo means its folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from quire.errors import ConfigError
from quire.records import DemoModel, Registry
from quire.settings.model_config import ModelConfig
from quire.settings.near_names import near_name


def demo_items(registry: Registry) -> list[dict[str, Any]]:
    """The settings of one model for each demo, ordered by name, in the form of `--models`."""
    demos: list[DemoModel] = sorted(registry.all("quire_demo_models"), key=lambda demo: demo.name)
    return [{"name": demo.name, "model": str(demo.folder())} for demo in demos]


def from_demo(config: ModelConfig, registry: Registry) -> ModelConfig:
    """The settings with the demo's folder, if the model is the name of a demo and not also a folder.

    Raises ConfigError for a name that is nearly that of a demo, and neither a folder nor an owner/name.
    """
    demos = registry.by_hook("quire_demo_models")
    demo: DemoModel | None = demos.get(config.model)
    if Path(config.model).exists():
        return config
    if demo is None:
        near = None if "/" in config.model else near_name(config.model, demos)
        if near is not None:
            raise ConfigError(f"There is no model {config.model!r}. Did you mean the demo {near!r}?")
        return config
    return replace(config, model=str(demo.folder()), served_model_name=config.served_model_name or (demo.name,))
