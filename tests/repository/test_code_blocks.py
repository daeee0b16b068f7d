"""Blocks of code in the documentation: each has a language, data can be read, and commands have the flags they show.

`tests/demos/test_examples.py` runs those that can be run.
"""

import ast
import json
import tomllib

import yaml
from code_blocks import PAGES, code_blocks, command_lines

from quire.commands.command_line import all_commands, command_parser
from quire.hooks.registry import load

LANGUAGES = {"python": ast.parse, "json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}
BLOCKS = [block for page in PAGES for block in code_blocks(page)]
REGISTRY = load(enable_lora=True)


def test_every_block_has_a_language_and_follows_its_syntax():
    for block in BLOCKS:
        assert block.language in {*LANGUAGES, "sh", "text"}, block.place
        if block.language in LANGUAGES and not block.is_cut:
            LANGUAGES[block.language](block.code)


def test_settings_of_servers_are_settings_that_exist(tmp_path, monkeypatch):
    parser = command_parser(next(command for command in all_commands(REGISTRY) if command.name == "serve"), REGISTRY)
    monkeypatch.chdir(tmp_path)
    files = [block for block in BLOCKS if block.language == "yaml" and "models:" in block.code]
    assert len(files) > 3
    for block in files:
        (tmp_path / "block.yaml").write_text(block.code)
        assert parser.parse_args(["--config", "block.yaml"]).models, block.place


def test_commands_of_platform_parse(capsys, tmp_path, monkeypatch):
    (file,) = (block.code for block in BLOCKS if block.language == "yaml" and "--config serve.yaml" in block.code)
    (tmp_path / "serve.yaml").write_text(file)
    monkeypatch.chdir(tmp_path)
    parsers = {command.name: command_parser(command, REGISTRY) for command in all_commands(REGISTRY)}
    for block in BLOCKS:
        for name, *words in command_lines(block.code) if block.language == "sh" else ():
            try:
                parsers[name].parse_args(words)
            except SystemExit:
                raise AssertionError(f"{block.place}: {name} {words}: {capsys.readouterr().err}") from None
