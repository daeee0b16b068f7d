"""The `platform` command: finds the subcommand, loads plugins, parses, runs.

Parsing has two phases, because plugins add flags and commands: the first reads only --plugins,
--enable-lora, --trace-hooks and --config, the second everything. It knows no command's business.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module

from quire import __version__
from quire.errors import PluginError, QuireError
from quire.options import add_plugin_options, new_parser, normalise, plugin_options
from quire.records import Command, Registry
from quire.registry import load, with_max_faults, with_options

BUILT_IN: Mapping[str, tuple[str, str]] = {
    "serve": ("quire.commands.serve", "COMMAND"),
    "chat": ("quire.commands.chat", "CHAT"),
    "complete": ("quire.commands.chat", "COMPLETE"),
    "plugins": ("quire.commands.plugins", "COMMAND"),
    "doctor": ("quire.commands.doctor", "COMMAND"),
    "bench": ("quire.commands.bench", "COMMAND"),
    "run-batch": ("quire.commands.run_batch", "COMMAND"),
}
"""Where the built-in commands are; imported when named, or for the list in --help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; gives the exit status. Errors of the user are one line on stderr, status 2."""
    words = normalise(sys.argv[1:] if argv is None else argv)
    try:
        return _run(words)
    except QuireError as error:
        print(f"platform: error: {error.message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _run(words: list[str]) -> int:
    early, _ = _first_phase().parse_known_args(words)
    registry = load(early.plugins, enable_lora=early.enable_lora, trace=early.trace_hooks)
    if not words or words[0] in ("-h", "--help"):
        print(_overview(registry))
        return 0
    if words[0] in ("-v", "--version"):
        print(__version__)
        return 0
    command = _find(words[0], registry)
    args = _second_phase(command, registry).parse_args(words[1:])
    if "plugin_max_faults" in args:
        registry = with_max_faults(registry, args.plugin_max_faults)
    args.registry = with_options(registry, plugin_options(vars(args), registry))
    return command.run(args)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _add_plugin_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plugins", type=_names, metavar="A,B", help="plugins to load (default: the bundled set)")
    parser.add_argument("--enable-lora", action="store_true", help="load the adapter runtime too")
    parser.add_argument("--trace-hooks", action="store_true", help="print every call of a plugin hook")


def _first_phase() -> argparse.ArgumentParser:
    parser = new_parser("platform", "", add_help=False)
    _add_plugin_flags(parser)
    return parser


def _second_phase(command: Command, registry: Registry) -> argparse.ArgumentParser:
    parser = new_parser(f"platform {command.name}", command.help)
    _add_plugin_flags(parser)
    command.configure(parser)
    add_plugin_options(parser, registry)
    return parser


def _built_in(name: str) -> Command:
    module, attribute = BUILT_IN[name]
    command = vars(import_module(module))[attribute]
    return replace(command, name=name)


def _find(name: str, registry: Registry) -> Command:
    brought = registry.of("quire_commands")
    for clash in set(brought) & set(BUILT_IN):
        plugin = registry.plugin_of("quire_commands", clash)
        raise PluginError(f"Plugin {plugin!r} brings a command {clash!r}, which is built in.")
    if name in BUILT_IN:
        return _built_in(name)
    if name in brought:
        return brought[name]  # type: ignore[no-any-return]
    known = ", ".join([*BUILT_IN, *brought])
    raise QuireError(f"There is no command {name!r}; there are {known}.")


def _overview(registry: Registry) -> str:
    commands = [*map(_built_in, BUILT_IN), *registry.all("quire_commands")]
    lines = [f"  {command.name:12} {command.help}" for command in commands]
    return "\n".join(
        [
            f"Quire {__version__}: one server, many base models, many adapters, every model-specific thing a plugin.",
            "",
            "usage: platform COMMAND [...]      platform COMMAND --help",
            "",
            *lines,
            "",
            "Settings come from the command line, QUIRE_* variables, or --config FILE (YAML), in this order.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
