"""What docs/from_vllm.md names is there, and variables of vLLM are pointed out at the start."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from quire.commands.built_in import BUILT_IN
from quire.commands.serve import COMMAND
from quire.from_vllm.arguments import ARGUMENTS
from quire.from_vllm.variables import ELSEWHERE, HARMLESS, SETTINGS, VALUES, unread_variables
from quire.hooks.registry import load
from quire.server.metrics.metrics import Metrics
from quire.settings.model_config import ModelConfig
from quire.settings.near_names import RENAMED, plain
from quire.settings.options import new_parser
from quire.settings.server_config import ServerConfig

PAGE = (Path(__file__).parents[2] / "docs" / "from_vllm.md").read_text()
KNOWN = {f.name for config in (ModelConfig, ServerConfig) for f in fields(config)}
ALSO = {name for config in (ModelConfig, ServerConfig) for f in fields(config) for name in f.metadata["also"]}
OF_PLUGINS = {
    f"{plugin}.{name}" for plugin, options in load(None, enable_lora=True).options.items() for name in options
}


def test_every_flag_that_the_page_names_exists() -> None:
    named = {plain(flag) for flag in re.findall(r"(?<![\w-])--[a-z][\w.-]*[a-z]", PAGE)}
    ours = KNOWN | ALSO | {"plugins", "enable_lora", "models", "help", *(plain(option) for option in OF_PLUGINS)}
    assert named - ours - ARGUMENTS.keys() - RENAMED.keys() == set()


def test_every_variable_of_ours_that_the_page_names_sets_something() -> None:
    parser = new_parser("platform serve", "test")
    COMMAND.configure(parser)
    known = {f"QUIRE_{name.upper()}" for name in KNOWN | {"plugins"}}
    assert set(re.findall(r"QUIRE_[A-Z_]+", PAGE)) <= known
    assert set(SETTINGS.values()) <= known
    assert set(VALUES) <= set(SETTINGS)
    assert set(ELSEWHERE) >= HARMLESS


def test_the_variable_for_the_hub_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_HUB", "modelscope")
    parser = new_parser("platform serve", "test")
    COMMAND.configure(parser)
    assert parser.parse_args([]).hub == "modelscope"


def test_a_variable_of_vllm_that_is_set_is_pointed_out() -> None:
    assert unread_variables(["VLLM_USE_MODELSCOPE", "VLLM_NO_USAGE_STATS", "PATH"]) == [
        "The variable VLLM_USE_MODELSCOPE is not read; use QUIRE_HUB=modelscope (docs/from_vllm.md)."
    ]


def test_every_metric_that_the_page_names_is_exported() -> None:
    exported = Metrics([]).text()[0].decode() + "quire:lora_requests_info"  # which is there once adapters are
    last = PAGE.partition("## Metrics")[2]
    for name in re.findall(r"`([a-z_]+)`", last.replace("`kind`", "")):
        assert f"quire:{name}" in exported, name


def test_the_commands_that_the_page_shows_are_built_in() -> None:
    assert {"serve", "doctor"} <= set(re.findall(r"platform (\w+)", PAGE)) <= set(BUILT_IN)
