"""Runs a command line of `platform`: finds the command, loads plugins, parses the arguments and runs the command.

Plugins add flags and commands, so parsing has two phases: the first reads only --plugins, --enable-lora, --trace-hooks
and --config, the second all flags.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from importlib import import_module
from typing import NamedTuple

from quire.commands.built_in import BUILT_IN, CLIENTS, WITHOUT_OPTIONS
from quire.commands.overview import overview
from quire.engine_process.wire.spawn import SpawnedProcess
from quire.errors import PluginError, QuireError
from quire.hooks.discovery import DISTRIBUTION, plugin_names
from quire.hooks.registry import listing, load, with_max_faults, with_options
from quire.records import Command, Registry
from quire.settings.flag_parser import ENV_PREFIX, FlagParser, unknown_variables
from quire.settings.model_config import ModelConfig
from quire.settings.near_names import near_name
from quire.settings.options import add_plugin_options, new_parser, normalize_flags, plugin_options
from quire.settings.server_config import ServerConfig

EARLY_FLAGS = {
    "--plugins": True,
    "--config": True,
    "--enable-lora": False,
    "--no-enable-lora": False,
    "--trace-hooks": False,
}
"""Flags that may precede the command, and whether they take a value."""


HELP = ("-h", "--help", "help")


def run(words: list[str], spawned: SpawnedProcess | None = None) -> int:
    """Run a command line with at least one word; returns the exit status. Raises QuireError and SystemExit.

    spawned: a process for the engine of `serve` that was started before.
    """
    words = _command_first(normalize_flags(words))
    if words[0] in CLIENTS:
        return _run_client(_built_in(words[0]), words[1:])
    chosen = _chosen_plugins(words)
    registry = _load(chosen)
    if words[0] in HELP or (words[0].startswith("-") and not {*HELP}.isdisjoint(words)):
        print(overview(registry.all("quire_commands")))
        return 0
    command, args = _parsed(words, registry)
    args.spawned, args.parse = spawned, partial(_parse_again, words, chosen, registry)
    return command.run(args)


def parse(words: list[str]) -> argparse.Namespace:
    """The settings of a command line that runs a command with plugins. Raises QuireError and SystemExit."""
    words = normalize_flags(words)
    return _parsed(words, _load(_chosen_plugins(words)))[1]


def _parse_again(words: list[str], before: _ChosenPlugins, registry: Registry) -> argparse.Namespace:
    """Like `parse`, but plugins are collected again only if others than before are chosen, which takes long."""
    chosen = _chosen_plugins(words)
    return _parsed(words, registry if chosen == before else _load(chosen))[1]


class _ChosenPlugins(NamedTuple):
    """The values of --plugins, --enable-lora and --trace-hooks."""

    plugins: Sequence[str] | None
    enable_lora: bool
    trace: bool


def _chosen_plugins(words: list[str]) -> _ChosenPlugins:
    early, _ = _first_phase().parse_known_args(words)
    return _ChosenPlugins(early.plugins, bool(early.enable_lora), early.trace_hooks)


def _load(chosen: _ChosenPlugins) -> Registry:
    return load(chosen.plugins, enable_lora=chosen.enable_lora, trace=chosen.trace)


def _parsed(words: list[str], registry: Registry) -> tuple[Command, argparse.Namespace]:
    command = _find(words[0], registry)
    parser = command_parser(command, registry)
    _warn_of_variables(parser)
    args = parser.parse_args(words[1:])
    if "plugin_max_faults" in args:
        registry = with_max_faults(registry, args.plugin_max_faults)
    args.registry = registry
    if command.name not in WITHOUT_OPTIONS:
        args.registry = with_options(registry, plugin_options(vars(args), registry))
    return command, args


def _run_client(command: Command, words: list[str]) -> int:
    parser = _parser_without_plugins(command)
    _warn_of_variables(parser)
    return command.run(parser.parse_args(words))


def _warn_of_variables(parser: FlagParser) -> None:
    for warning in unknown_variables(os.environ, [*parser.env_names, *_setting_variables()]):
        print(f"platform: warning: {warning}", file=sys.stderr)


def _command_first(words: list[str]) -> list[str]:
    """Reorder `--plugins x COMMAND …` to `COMMAND --plugins x …`."""
    at = 0
    while at < len(words) and words[at].partition("=")[0] in EARLY_FLAGS:
        name, equals, _ = words[at].partition("=")
        at += 1 if equals or not EARLY_FLAGS[name] else 2
    if at < len(words) and not words[at].startswith("-"):
        return [words[at], *words[:at], *words[at + 1 :]]
    return words


def _setting_variables() -> list[str]:
    """The variables of all settings, since one environment may serve several commands."""
    names = [f.name for config in (ModelConfig, ServerConfig) for f in fields(config)]
    return [ENV_PREFIX + name.upper() for name in (*names, "plugins", "enable_lora", "trace_hooks", "models")]


def _add_plugin_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("plugins")
    names = "A,B: load only these plugins; +A,B: load them in addition to the bundled ones (default: the bundled ones)"
    group.add_argument("--plugins", type=plugin_names, metavar="A,B", help=names)
    lora = "load the adapter runtimes too (default: off; on for the demos when no model is given)"
    group.add_argument("--enable-lora", action=argparse.BooleanOptionalAction, default=None, help=lora)
    group.add_argument("--trace-hooks", action="store_true", help="print every call of a plugin hook")


def _first_phase() -> FlagParser:
    parser = new_parser("platform", "", add_help=False)
    _add_plugin_flags(parser)
    return parser


def _parser_without_plugins(command: Command) -> FlagParser:
    parser = new_parser(f"platform {command.name}", command.help)
    command.configure(parser)
    return parser


def command_parser(command: Command, registry: Registry) -> FlagParser:
    """The parser of a command, with the flags that the loaded plugins add."""
    parser = _parser_without_plugins(command)
    if command.name not in CLIENTS:
        _add_plugin_flags(parser)
    if command.name not in WITHOUT_OPTIONS:
        add_plugin_options(parser, registry)
    return parser


def _built_in(name: str) -> Command:
    module, attribute, summary = BUILT_IN[name]
    command = vars(import_module(module))[attribute]
    return replace(command, name=name, help=summary)


def all_commands(registry: Registry) -> list[Command]:
    """The built-in commands, which are imported, and those of the loaded plugins."""
    return [*map(_built_in, BUILT_IN), *registry.all("quire_commands")]


def _find(name: str, registry: Registry) -> Command:
    provided = registry.by_hook("quire_commands")
    for clash in set(provided) & set(BUILT_IN):
        plugin = registry.plugin_of("quire_commands", clash)
        raise PluginError(f"Plugin {plugin!r} provides a command {clash!r}, but that is a built-in command.")
    if name in BUILT_IN:
        return _built_in(name)
    if name in provided:
        return provided[name]  # type: ignore[no-any-return]
    near = near_name(name, [*BUILT_IN, *provided])
    hint = f" Did you mean {near!r}?" if near else ""
    known = ", ".join([*BUILT_IN, *provided])
    off = [info.name for info in listing(registry) if not info.enabled and info.distribution != DISTRIBUTION]
    more = f" A plugin that is not enabled may provide it: `platform {name} --plugins +{','.join(off)}`." if off else ""
    raise QuireError(f"There is no command {name!r}.{hint} Commands: {known}.{more}")
