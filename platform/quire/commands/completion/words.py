"""What can be completed on a command line of `platform`, from the parsers of its commands."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass

MODEL_WORDS = frozenset(("MODEL", "BASE", "TUNED"))
"""Names of arguments that are models: those on this machine are offered, besides files."""

FILE_WORDS = frozenset(("FILE", "FOLDER", "OUT", "ADAPTER"))

LIST_MODELS = "platform list --quiet 2>/dev/null"
"""The command that a script runs for the names of models."""


@dataclass(frozen=True)
class Flag:
    """A flag. names: its spellings. value: "" (it takes none), "words" (one of `choices`), "file", or "text"."""

    names: tuple[str, ...]
    help: str
    value: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class CommandWords:
    """A command, or one of its subcommands. argument: "model", "file", "text" or ""; choices: its possible words."""

    name: str
    help: str
    flags: tuple[Flag, ...]
    subcommands: tuple[CommandWords, ...] = ()
    argument: str = ""
    choices: tuple[str, ...] = ()


def words_of(name: str, help_text: str, parser: argparse.ArgumentParser) -> CommandWords:
    """The words of a command and of its subcommands."""
    flags, subcommands, argument, choices = [], [], "", tuple[str, ...]()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            subcommands = [words_of(sub, helps.get(sub, ""), child) for sub, child in action.choices.items()]
        elif action.option_strings:
            flags.append(_flag(action))
        elif not argument:
            argument, choices = _argument(action)
    return CommandWords(name, help_text, tuple(flags), tuple(subcommands), argument, choices)


def _flag(action: argparse.Action) -> Flag:
    names, text = tuple(action.option_strings), _one_line(action.help)
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        return Flag(names, text, "")
    if action.choices:
        return Flag(names, text, "words", tuple(map(str, action.choices)))
    return Flag(names, text, "file" if action.metavar in FILE_WORDS else "text")


def _argument(action: argparse.Action) -> tuple[str, tuple[str, ...]]:
    if action.choices:
        return "text", tuple(map(str, action.choices))
    return "model" if action.metavar in MODEL_WORDS else "file" if action.metavar in FILE_WORDS else "text", ()


def _one_line(text: str | None) -> str:
    return "" if text is None or text == argparse.SUPPRESS else " ".join(text.replace("%%", "%").split())


def paths(commands: Iterable[CommandWords]) -> list[tuple[str, CommandWords]]:
    """Every command with the words before it: ("serve", …), ("adapters merge", …)."""
    found = []
    for command in commands:
        found.append((command.name, command))
        found += [(f"{command.name} {sub.name}", sub) for sub in command.subcommands]
    return found
