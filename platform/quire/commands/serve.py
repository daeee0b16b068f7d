"""`platform serve`: loads models and serves them over HTTP; without a model, the demos of the loaded plugins.

Demos are served with their adapters, and their models may decide to call tools, unless a flag says otherwise.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from quire.commands.models import demo_adapters, demo_models, named_models
from quire.commands.start_banner import print_banner
from quire.engine.parallel.nodes.follow import follow
from quire.engine.parallel.nodes.place import check_place
from quire.errors import ConfigError, QuireError
from quire.from_vllm.variables import unread_variables
from quire.hooks.discovery import adds_to_bundled
from quire.hooks.plugins_off import demos_off, plugins_off
from quire.hooks.registry import load
from quire.log_format import log_to_stderr
from quire.records import Command, Registry
from quire.server.process.started import OnReady, StartedServer
from quire.settings.model_config import ModelConfig
from quire.settings.model_values import read_config
from quire.settings.options import add_config, model_list
from quire.settings.server_config import ServerConfig, is_loopback

log = logging.getLogger("quire")

DESCRIPTION = """\
Serve models over HTTP with the OpenAI API and vLLM's request fields.

examples:
  platform serve                                         the demo models, with adapters and tools
  platform serve Qwen/Qwen2.5-0.5B-Instruct              a model from the hub
  platform serve ./my-model --max-model-len 8k --api-key secret
  platform serve small=./model-a large=org/model-b       two models, selected by the field "model"
  platform serve ./my-model --enable-lora --lora-modules style=./my-adapter
  platform serve --config serve.yaml

docs/serving.md describes every setting."""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.add_argument(
        "models_given",
        nargs="*",
        metavar="MODEL",
        help="folder, hub id, demo, or name=folder; several models may be given (default: the demos)",
    )
    parser.add_argument(
        "--models",
        type=model_list,
        default=[],
        metavar="JSON",
        help="models with individual settings (a list in YAML)",
    )
    add_config(parser, ModelConfig, ServerConfig)
    # None: not given, so on for the demos and off for named models.
    parser.set_defaults(enable_auto_tool_choice=None)


def _run(args: argparse.Namespace) -> int:
    log_to_stderr(log_format=args.log_format)
    if args.log_format == "text":
        return _serve(args, print_banner)
    try:
        return _serve(args, _log_ready)
    except QuireError as error:  # otherwise the command line would print it as text
        log.critical("%s", error.message)
        return 2


def _log_ready(started: StartedServer) -> None:
    log.info("Quire is ready at %s", started.url)


def _serve(args: argparse.Namespace, on_ready: OnReady) -> int:
    from quire.server.process.start import run_server

    served = served_settings(args)
    defaults = served.defaults
    place = check_place(served.models, served.config.data_parallel_size, os.environ)
    if place is not None:
        if not place.leads:
            return follow(place)
        defaults = replace(defaults, nnodes=1, node_rank=0, distributed_executor_backend=None)  # for further models
    return run_server(
        served.models,
        served.config,
        served.registry,
        plugins=served.plugins,
        enable_lora=served.enable_lora,
        defaults=defaults,
        on_ready=on_ready,
        spawned=args.spawned,
        settings_file=SettingsFile(args, served),
    )


@dataclass(frozen=True, kw_only=True)
class ServedSettings:
    """What a command line of `serve` says, read. defaults: settings of models that requests load."""

    models: Sequence[ModelConfig]
    config: ServerConfig
    registry: Registry
    plugins: Sequence[str] | None
    enable_lora: bool
    defaults: ModelConfig


@dataclass(frozen=True)
class SettingsFile:
    """The command line of a server, whose file of --config can be read again. first: as it was at the start."""

    args: argparse.Namespace
    first: ServedSettings

    @property
    def file(self) -> str | None:
        """The file of --config."""
        return self.args.config

    def read(self) -> ServedSettings:
        """Read the command line, the variables and the file again. Raises ConfigError."""
        try:
            args = self.args.parse()
        except SystemExit as error:  # the parser has printed the same sentence
            raise ConfigError(getattr(error.__cause__, "message", "The settings cannot be read.")) from error
        return _settings(args)


def served_settings(args: argparse.Namespace) -> ServedSettings:
    """Read the arguments, and log what deserves a warning. Raises ConfigError."""
    log.setLevel(args.log_level.upper())
    for warning in unread_variables(os.environ):
        log.warning("%s", warning)
    served = _settings(args)
    log_plugins(served.registry)
    warn_of_open_server(served.config)
    return served


def _settings(args: argparse.Namespace) -> ServedSettings:
    demos = not named_models(vars(args), args.registry)
    tools = demos if args.enable_auto_tool_choice is None else args.enable_auto_tool_choice
    config = read_config(ServerConfig, {**vars(args), "enable_auto_tool_choice": tools})
    lora, registry = with_adapters(args, demos)
    if lora and demos:
        config = replace(config, lora_modules=(*config.lora_modules, *demo_adapters(registry)))
    return ServedSettings(
        models=models_to_serve(args, registry),
        config=config,
        registry=registry,
        plugins=args.plugins,
        enable_lora=lora,
        defaults=read_config(ModelConfig, vars(args)),
    )


def with_adapters(args: argparse.Namespace, demos: bool) -> tuple[bool, Registry]:
    """Whether adapter runtimes are enabled, and the registry with or without them.

    Without a flag they are enabled for the demos, unless --plugins is an allow-list.
    """
    registry: Registry = args.registry
    if args.enable_lora is None and demos and adds_to_bundled(args.plugins):
        return True, load(args.plugins, options=registry.options, enable_lora=True, trace=args.trace_hooks)
    return bool(args.enable_lora), registry


def models_to_serve(args: argparse.Namespace, registry: Registry) -> Sequence[ModelConfig]:
    """The named models, or the demos. With neither the server starts without models and logs a warning."""
    if named := named_models(vars(args), registry):
        return named
    chosen = demo_models(vars(args), registry)
    if not chosen:
        loaded = ", ".join(plugin.name for plugin in registry.plugins) or "none"
        log.warning(
            "no model was given, and no loaded plugin has a demo model (plugins: %s): no model is served", loaded
        )
        return chosen
    log.info("no model was given: serving the demos %s", ", ".join(c.name for c in chosen))
    if off := [f"{demo} (plugin {plugin})" for demo, plugin in demos_off(registry)]:
        log.info("demos not served, because their plugin is not enabled: %s", ", ".join(off))
    return chosen


def log_plugins(registry: Registry) -> None:
    """Log which plugins are loaded, and which installed ones are not."""
    log.info("plugins: %s", ", ".join(plugin.name for plugin in registry.plugins) or "none")
    if off := [plugin.name for plugin in plugins_off(registry)]:
        log.info("installed plugins that are not enabled: %s (to enable one: --plugins +%s)", ", ".join(off), off[0])


_OPEN_TO_ALL = ", and load and unload adapters if adapter runtimes are enabled (models, if --model-root is set)"


def warn_of_open_server(config: ServerConfig) -> None:
    """Warn if other machines may reach a server that requires no API key."""
    if config.api_key or config.ssl_ca_certs or is_loopback(config.host):
        return
    log.warning(
        "--host %s without --api-key: every machine that can reach this port can use the server%s",
        config.host,
        "" if config.admin_api_key else _OPEN_TO_ALL,
    )


COMMAND = Command("serve", "serve models over HTTP (OpenAI API)", _configure, _run)
