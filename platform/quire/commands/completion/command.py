"""The command `completion`, which prints a script for a shell."""

from __future__ import annotations

import argparse

from quire.commands.completion import bash, fish, zsh
from quire.commands.completion.words import words_of
from quire.records import Command

SHELLS = {"bash": bash.script, "zsh": zsh.script, "fish": fish.script}

DESCRIPTION = """\
Print a script that makes a shell complete subcommands, flags, their values, and the names of models.

examples:
  source <(platform completion bash)                                    for this shell; in ~/.bashrc for all
  platform completion zsh > "${fpath[1]}/_platform"
  platform completion fish > ~/.config/fish/completions/platform.fish

The flags of plugins are those of the plugins that are loaded now (--plugins). Print the script again when they
change."""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.add_argument("shell", choices=tuple(SHELLS), metavar="bash|zsh|fish", help="the shell")


def _run(args: argparse.Namespace) -> int:
    from quire.commands.command_line import all_commands, command_parser

    commands = [
        words_of(command.name, command.help, command_parser(command, args.registry))
        for command in all_commands(args.registry)
    ]
    print(SHELLS[args.shell](commands), end="")
    return 0


COMMAND = Command("completion", "print the completion script of a shell", _configure, _run)
