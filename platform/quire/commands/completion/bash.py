"""The completion script of bash (3.2 and later); it needs no other package."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from quire.commands.completion.words import LIST_MODELS, CommandWords, paths

_SCRIPT = """\
# Completion of `platform` for bash: source <(platform completion bash)
_platform() {
    local line word previous path i offered="" files=""
    line=${COMP_LINE:0:COMP_POINT}
    word=${line##*[[:space:]]}
    previous=${COMP_WORDS[COMP_CWORD-1]}
    path=""
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$path|${COMP_WORDS[i]}" in
            @ENTRIES@) path="${path:+$path }${COMP_WORDS[i]}" ;;
        esac
    done
    case "$path|$previous" in
@VALUES@
        *)
            case "$path" in
@COMMANDS@
            esac ;;
    esac
    COMPREPLY=()
    while IFS= read -r i; do COMPREPLY+=("$i"); done < <(compgen -W "$offered" -- "$word")
    if [[ -n $files && $word != -* ]]; then
        compopt -o filenames 2>/dev/null
        while IFS= read -r i; do COMPREPLY+=("$i"); done < <(compgen -f -- "$word")
    fi
    case "$word" in
        *:*) COMPREPLY=("${COMPREPLY[@]#"${word%:*}:"}") ;;
    esac
}
complete -F _platform platform
"""


def script(commands: Sequence[CommandWords]) -> str:
    """The script for these commands."""
    found = paths(commands)
    entries = [f'"{path.rpartition(" ")[0]}|{command.name}"' for path, command in found]
    top = f'                "") offered={shlex.quote(" ".join(command.name for command in commands))} ;;'
    return (
        _SCRIPT.replace("@ENTRIES@", "|".join(entries))
        .replace("@VALUES@", "\n".join(line for path, command in found for line in _values(path, command)))
        .replace("@COMMANDS@", "\n".join([top, *(_command(path, command) for path, command in found)]))
    )


def _values(path: str, command: CommandWords) -> list[str]:
    lines = []
    for flag in command.flags:
        names = "|".join(f'"{path}|{name}"' for name in flag.names)
        if flag.value == "words":
            lines.append(f"        {names}) offered={shlex.quote(' '.join(flag.choices))} ;;")
        elif flag.value:
            lines.append(f"        {names}) {'files=1' if flag.value == 'file' else ':'} ;;")
    return lines


def _command(path: str, command: CommandWords) -> str:
    words = [*(sub.name for sub in command.subcommands), *command.choices]
    flags = [name for flag in command.flags for name in flag.names]
    models = f'[[ $word == -* ]] || offered="$offered $({LIST_MODELS})"; ' if command.argument == "model" else ""
    files = "files=1 " if command.argument in ("model", "file") else ""
    return f'                "{path}") offered={shlex.quote(" ".join([*words, *flags]))}; {models}{files};;'
