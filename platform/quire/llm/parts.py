"""Loads the parts of an `LLM` from its arguments: engine, tokenizer, plugins and limits."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from quire import hub
from quire.engine.parallel.nodes.follow import follow
from quire.engine.parallel.nodes.place import place_of
from quire.errors import UnknownArchitecture
from quire.from_vllm.variables import unread_variables
from quire.hooks import registry
from quire.hooks.adapter_resolver import AdapterResolver
from quire.hooks.demos import from_demo
from quire.hooks.discovery import plugin_names
from quire.hooks.plugins_off import with_advice
from quire.llm.arguments import known_settings, model_config
from quire.media.limits import MediaLimits
from quire.records import Registry
from quire.settings.speculative_config import SpeculativeConfig
from quire.text.tokenizer.tokenizer import Tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LLMParts:
    """A loaded model.

    engine: `quire.engine.engine.Engine` or an object with its interface. limits: None = the default limits.
    task: the task it was loaded for (`ModelConfig.task`). rebuild: loads the engine again; None: it cannot be.
    has_one_rank: whether only this process computes it.
    """

    engine: Any
    tokenizer: Tokenizer
    registry: Registry
    chat_template: str | None = None
    download_dir: str | None = None
    limits: MediaLimits | None = None
    task: str = "auto"
    rebuild: Callable[[], Any] | None = None
    has_one_rank: bool = True

    @property
    def on_cpu(self) -> bool:
        """Whether the model is computed on a CPU."""
        return bool(self.engine.info.device == "cpu")

    def close(self) -> None:
        """Close the engine, which the end of the program need not do any more."""
        atexit.unregister(self.engine.close)
        self.engine.close()

    def adapter_resolver(self) -> AdapterResolver:
        """Finds the folders of adapters that requests name without a path."""
        folder = self.download_dir
        return AdapterResolver(self.registry, hub.adapter_cache(folder and f"{folder}/adapters"))


def open_llm(
    model: str,
    plugins: Sequence[str] | str | None,
    enable_lora: bool,
    plugin_options: Mapping[str, Mapping[str, Any]] | None,
    settings: Mapping[str, Any],
) -> LLMParts:
    """Load a model; arguments and errors are those of `LLM`.

    In a process of torchrun, or on a node, that does not have the first rank: follow that one, then exit.
    """
    from quire.engine.build import build_engine  # imports torch

    known = known_settings(settings)
    for sentence in unread_variables(os.environ):
        log.warning("%s", sentence)
    names = plugin_names(plugins) if isinstance(plugins, str) else plugins
    found = registry.load(names, options=plugin_options, enable_lora=enable_lora)
    config = from_demo(model_config(model, known), found)
    place = place_of(config, os.environ)
    if place is not None and not place.leads:
        sys.exit(follow(place))
    SpeculativeConfig.from_registry(config.speculation, found)  # raises ConfigError now instead of after loading
    config.executor_record(found)
    folder = hub.resolve(config.model, config)
    tokenizer = Tokenizer.load(hub.resolve_tokenizer(config, folder), config.tokenizer_mode, config.trust_remote_code)
    limits = MediaLimits.from_config(config, found)
    rebuild = partial(build_engine, config, found, tokenizer=lambda: tokenizer)
    try:
        engine = rebuild()
    except UnknownArchitecture as error:
        raise with_advice(error, found) from error
    if place is not None:
        atexit.register(engine.close)  # so that the others end too; else they take this rank for lost, and wait for it
    return LLMParts(
        engine=engine,
        tokenizer=tokenizer,
        registry=found,
        chat_template=config.chat_template,
        download_dir=config.download_dir,
        limits=limits,
        task=config.task,
        rebuild=rebuild,
        has_one_rank=config.num_ranks == 1,
    )
