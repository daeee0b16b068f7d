"""The `platform` command: errors become one line, and `--help` lists the commands.

`quire.commands.command_line` runs the commands. It is imported only for them, so that `platform --help` is fast.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from quire import __version__
from quire.commands.built_in import BUILT_IN
from quire.errors import QuireError

if TYPE_CHECKING:
    from quire.records import Command


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status. User errors are one line on stderr, with status 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(words)
    except QuireError as error:
        print(f"platform: error: {error.message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(words: list[str]) -> int:
    if words in ([], ["-h"], ["--help"], ["help"]):
        print(overview(_bundled_commands()))
        return 0
    if words in (["-V"], ["-v"], ["--version"], ["version"]):
        print(__version__)
        return 0
    from quire.commands.command_line import run

    return run(words)


def _bundled_commands() -> list[Command]:
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


if __name__ == "__main__":
    sys.exit(main())
