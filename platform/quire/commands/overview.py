"""The list of commands that `platform --help` prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from quire import __version__
from quire.commands.built_in import BUILT_IN

if TYPE_CHECKING:
    from quire.records import Command


def bundled_commands() -> list[Command]:
    """The commands of bundled plugins; only these plugins are imported."""
    from quire.hooks.discovery import command_plugins

    return [command for point in command_plugins() for command in point.load().quire_commands()]


def overview(provided: Iterable[Command]) -> str:
    """The text of --help. provided: the commands of plugins."""
    commands = {name: summary for name, (_, _, summary) in BUILT_IN.items()}
    commands |= {command.name: command.help for command in provided}
    lines = [f"  {name:12} {summary}" for name, summary in commands.items()]
    return "\n".join(
        [
            f"Quire {__version__}: serves many base models and adapters; everything model-specific is a plugin.",
            "",
            "usage: platform COMMAND [options]      platform COMMAND --help      platform --version",
            "",
            *lines,
            "",
            "Settings come from the command line, then QUIRE_* variables, then --config FILE (YAML).",
        ]
    )
