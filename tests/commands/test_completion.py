"""`platform completion`: the scripts complete what the parsers know."""

import re
import shutil
import subprocess

import pytest

from quire.cli import main
from quire.commands.built_in import BUILT_IN
from quire.commands.command_line import all_commands, command_parser
from quire.commands.completion import bash, fish, zsh
from quire.commands.completion.words import CommandWords, Flag, words_of
from quire.hooks.registry import load

TRICKY = CommandWords(
    "serve",
    "it's: a [test]",
    (
        Flag(("--dtype",), 'the model\'s "type": one of $HOME', "words", ("auto", "float16")),
        Flag(("--config", "-c"), "file", "file"),
    ),
    argument="model",
)
GROUP = CommandWords("adapters", "adapters", (), (CommandWords("merge", "merge", (Flag(("--fast",), "", ""),)),))


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """A `platform` that lists two models, and the folder that it is in."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "platform").write_text("#!/bin/sh\necho org/one:Q4\necho org/one:Q8\necho org/two\n")
    (folder / "platform").chmod(0o755)
    return folder


def completed(script, folder, line):
    """What bash offers at the end of a line."""
    words = re.findall(r"[^\s:]+|:|(?<=\s)$", line)
    code = f"""
        PATH={folder}:$PATH
        {script}
        COMP_LINE='{line}' COMP_POINT={len(line)} COMP_WORDS=({" ".join(f"'{word}'" for word in words)})
        COMP_CWORD={len(words) - 1}
        _platform
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "--norc", "-c", code], capture_output=True, text=True, check=True, cwd=folder)
    assert not done.stderr
    return sorted(done.stdout.split())


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("platform ", ["adapters", "serve"]),
        ("platform se", ["serve"]),
        ("platform adapters ", ["merge"]),
        ("platform adapters merge --", ["--fast"]),
        ("platform serve --d", ["--dtype"]),
        ("platform serve --dtype ", ["auto", "float16"]),
        ("platform serve --config pl", ["platform"]),
        ("platform serve org/t", ["org/two"]),
        ("platform serve org/one:Q", ["Q4", "Q8"]),
        ("platform serve x --dtype f", ["float16"]),
    ],
)
def test_bash_completes(line, offered, scripts):
    assert completed(bash.script([TRICKY, GROUP]), scripts, line) == offered


def test_every_command_and_flag_is_in_the_script_of_every_shell(capsys):
    assert main(["completion", "zsh"]) == 0
    registry, printed = load(), capsys.readouterr().out
    commands = [words_of(each.name, each.help, command_parser(each, registry)) for each in all_commands(registry)]
    assert zsh.script(commands) == printed
    for shell, script in (("bash", bash.script(commands)), ("zsh", printed), ("fish", fish.script(commands))):
        for name in (*BUILT_IN, "adapters", "merge", "throughput"):
            assert re.search(rf"\b{name}\b", script), (shell, name)
        for flag in ("max-model-len", "system-prompt", "num-prompts"):
            assert flag in script, (shell, flag)
        if shutil.which(shell):
            checked = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True)
            assert checked.returncode == 0, checked.stderr


def test_quotes_and_colons_of_help_texts_do_not_end_words():
    assert r"'--dtype[the model'\''s " in zsh.script([TRICKY])
    assert r"'serve:it'\''s\: a [test]'" in zsh.script([TRICKY])
    assert r"-d 'the model\'s " in fish.script([TRICKY])
    assert "-l config -s c -r -F" in fish.script([TRICKY])
