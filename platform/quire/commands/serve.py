"""`platform serve`: load models and answer over HTTP. With no model named, the demos of the loaded plugins.

With `--enable-lora`, their adapters too.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from dataclasses import replace

from quire.commands.models import demo_adapters, demo_models, named_models
from quire.config import ModelConfig, ServerConfig
from quire.from_vllm.variables import unread
from quire.options import add_config, model_list, read_config
from quire.records import Command, Registry

log = logging.getLogger("quire")


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models_given",
        nargs="*",
        metavar="MODEL",
        help="folder, hub id, demo, or name=folder; several are served at once",
    )
    parser.add_argument(
        "--models",
        type=model_list,
        default=[],
        metavar="JSON",
        help="models with settings of their own (a list in YAML)",
    )
    add_config(parser, ModelConfig, "models")
    add_config(parser, ServerConfig, "server")


def _run(args: argparse.Namespace) -> int:
    from quire.server.start import run

    logging.basicConfig(format="%(levelname)s %(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S")
    config = read_config(ServerConfig, vars(args))
    log.setLevel(config.log_level.upper())
    for sentence in unread(os.environ):
        log.warning("%s", sentence)
    if args.enable_lora and not named_models(vars(args), args.registry):
        config = replace(config, lora_modules=(*config.lora_modules, *demo_adapters(args.registry)))
    return run(
        models_to_serve(args, args.registry),
        config,
        args.registry,
        plugins=args.plugins,
        enable_lora=args.enable_lora,
        on_ready=lambda url: print(f"Quire is ready at {url}", flush=True),
    )


def models_to_serve(args: argparse.Namespace, registry: Registry) -> Sequence[ModelConfig]:
    """Models that were named, else demos, else none: then the server starts all the same and says why it is empty."""
    named = named_models(vars(args), registry)
    chosen = named or demo_models(vars(args), registry)
    if not chosen:
        loaded = ", ".join(plugin.name for plugin in registry.plugins) or "none"
        log.warning("no model was named and no loaded plugin has a demo model (plugins: %s): nothing is served", loaded)
    elif not named:
        log.info("no model was named: serving the demos %s", ", ".join(c.name for c in chosen))
    return chosen


COMMAND = Command("serve", "serve models over HTTP (OpenAI API)", _configure, _run)
