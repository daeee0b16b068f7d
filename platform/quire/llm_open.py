"""From the arguments of `LLM` to an engine in this process and what stands beside it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire import hub, registry
from quire.adapter_sources import AdapterSources
from quire.demos import from_demo
from quire.discovery import plugin_names
from quire.errors import UnknownArchitecture
from quire.from_vllm.variables import unread
from quire.media.limits import MediaLimits
from quire.plugins_off import with_advice
from quire.records import Registry
from quire.text.arguments import known_settings, model_config
from quire.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A loaded model. engine: `quire.engine.engine.Engine`, or what behaves like one. limits: None = the usual ones.

    task: what it was loaded for (`ModelConfig.task`).
    """

    engine: Any
    tokenizer: Tokenizer
    registry: Registry
    chat_template: str | None = None
    download_dir: str | None = None
    limits: MediaLimits | None = None
    task: str = "auto"

    def sources(self) -> AdapterSources:
        """Where adapters may be found that requests name."""
        folder = self.download_dir
        return AdapterSources(self.registry, hub.adapter_cache(folder and f"{folder}/adapters"))


def opened(
    model: str,
    plugins: Sequence[str] | str | None,
    enable_lora: bool,
    plugin_options: Mapping[str, Mapping[str, Any]] | None,
    settings: Mapping[str, Any],
) -> Opened:
    """Load a model; arguments and errors are those of `LLM`."""
    from quire.engine.engine import Engine  # imports torch

    wanted = known_settings(settings)
    for sentence in unread(os.environ):
        log.warning("%s", sentence)
    names = plugin_names(plugins) if isinstance(plugins, str) else plugins
    found = registry.load(names, options=plugin_options, enable_lora=enable_lora)
    config = from_demo(model_config(model, wanted), found)
    folder = hub.resolve(config.model, config)
    tokenizer = Tokenizer.load(hub.resolve_tokenizer(config, folder), config.tokenizer_mode, config.trust_remote_code)
    limits = MediaLimits.of(config, found)
    try:
        engine = Engine.build(config, found, tokenizer=lambda: tokenizer)
    except UnknownArchitecture as error:
        raise with_advice(error, found) from error
    return Opened(
        engine=engine,
        tokenizer=tokenizer,
        registry=found,
        chat_template=config.chat_template,
        download_dir=config.download_dir,
        limits=limits,
        task=config.task,
    )
