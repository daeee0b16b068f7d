"""The completion script of zsh."""

from __future__ import annotations

from collections.abc import Sequence

from quire.commands.completion.words import LIST_MODELS, CommandWords, Flag

_SCRIPT = """\
#compdef platform
# Completion of `platform` for zsh: platform completion zsh > "${fpath[1]}/_platform"
_platform_models() {
    local -a names
    names=(${(f)"$(@LIST@)"})
    compadd -a names
    _files
}
@FUNCTIONS@
if [ "$funcstack[1]" = "_platform" ]; then
    _platform "$@"
else
    compdef _platform platform
fi
"""


def script(commands: Sequence[CommandWords]) -> str:
    """The script for these commands."""
    whole = CommandWords("platform", "", (), tuple(commands))
    return _SCRIPT.replace("@LIST@", LIST_MODELS).replace("@FUNCTIONS@", "\n".join(_functions("_platform", whole)))


def _functions(function: str, command: CommandWords) -> list[str]:
    """The functions of a command: those of its subcommands, then its own."""
    lines = [line for sub in command.subcommands for line in _functions(_name(function, sub), sub)]
    arguments = [argument for flag in command.flags for argument in _flag(flag)]
    if not command.subcommands:
        rest = {"model": "_platform_models", "file": "_files"}.get(command.argument)
        rest = f"({' '.join(command.choices)})" if command.choices else rest
        arguments += [_quoted(f"*:{command.name}:{rest}")] if rest else []
        return [*lines, f"{function}() {{", f"    _arguments {' '.join(arguments)}".rstrip(), "}"]
    each = [_quoted(f"{_escaped(sub.name)}:{_escaped(sub.help)}") for sub in command.subcommands]
    cases = [f"            {sub.name}) {_name(function, sub)} ;;" for sub in command.subcommands]
    return [
        *lines,
        f"{function}() {{",
        "    local line state",
        "    local -a commands",
        f"    commands=({' '.join(each)})",
        f"    _arguments -C {' '.join(arguments)} '1: :->command' '*:: :->rest'",
        '    case "$state" in',
        "        command) _describe command commands ;;",
        '        rest) case "$line[1]" in',
        *cases,
        "        esac ;;",
        "    esac",
        "}",
    ]


def _name(function: str, command: CommandWords) -> str:
    return f"{function}_{command.name.replace('-', '_')}"


def _flag(flag: Flag) -> list[str]:
    value = {"": "", "words": f":value:({' '.join(flag.choices)})", "file": ":file:_files", "text": ":value: "}
    text = flag.help.replace("[", "(").replace("]", ")").replace(":", r"\:")
    return [_quoted(f"{name}[{text}]{value[flag.value]}") for name in flag.names]


def _escaped(text: str) -> str:
    return text.replace(":", r"\:")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
