"""The completion script of fish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quire.commands.completion.words import LIST_MODELS, CommandWords, Flag

_BEGIN = """\
# Completion of `platform` for fish: platform completion fish > ~/.config/fish/completions/platform.fish
complete -c platform -f
"""


def script(commands: Sequence[CommandWords]) -> str:
    """The script for these commands."""
    lines = [line for command in commands for line in _command(command, commands)]
    return _BEGIN + "\n".join(lines) + "\n"


def _command(command: CommandWords, siblings: Sequence[CommandWords]) -> Iterator[str]:
    none = f"not __fish_seen_subcommand_from {' '.join(other.name for other in siblings)}"
    yield f"complete -c platform -n {_quoted(none)} -a {command.name} -d {_quoted(command.help)}"
    here = f"__fish_seen_subcommand_from {command.name}"
    inner = " ".join(sub.name for sub in command.subcommands)
    for sub in command.subcommands:
        before = f"{here}; and not __fish_seen_subcommand_from {inner}"
        yield f"complete -c platform -n {_quoted(before)} -a {sub.name} -d {_quoted(sub.help)}"
        yield from _arguments(f"{here}; and __fish_seen_subcommand_from {sub.name}", sub)
    yield from _arguments(here, command)


def _arguments(condition: str, command: CommandWords) -> Iterator[str]:
    begin = f"complete -c platform -n {_quoted(condition)}"
    for flag in command.flags:
        yield f"{begin} {_names(flag)}{_value(flag)} -d {_quoted(flag.help)}"
    if command.choices:
        yield f"{begin} -a {_quoted(' '.join(command.choices))}"
    if command.argument == "model":
        yield f"{begin} -F -a {_quoted(f'({LIST_MODELS})')}"
    elif command.argument == "file":
        yield f"{begin} -F"


def _names(flag: Flag) -> str:
    """The options of `complete` for the spellings of a flag."""
    words = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names]
    return " ".join(words)


def _value(flag: Flag) -> str:
    return {"": "", "words": f" -x -a {_quoted(' '.join(flag.choices))}", "file": " -r -F", "text": " -x"}[flag.value]


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
