"""The checks of commands, options and demo models accept correct ones, and name the fault of others."""

import json
import shutil
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest

from quire.hooks.registry import load
from quire.records import Command, DemoModel, Option
from quire_testing import check_command, check_demo_model, check_option, tiny_llama

BUNDLED = load()


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=1)


def test_a_correct_command_passes() -> None:
    check_command(Command("count", "counts", configure, lambda args: args.count), ["--count", "0"])


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (Command("Count it", "counts", configure, lambda args: 0), "cannot be typed as a command"),
        (Command("count", "", configure, lambda args: 0), "no help text"),
        (Command("count", "counts", configure, lambda args: None), "must return the exit status"),  # type: ignore[arg-type]
        (Command("count", "counts", lambda parser: parser.set_defaults(registry=1), lambda args: 0), "is Quire's"),
        (Command("count", "counts", lambda parser: 1, lambda args: 0), "return nothing"),  # type: ignore[arg-type,return-value]
    ],
)
def test_a_faulty_command_is_noticed(command: Command, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_command(command)


@pytest.mark.parametrize("option", BUNDLED.all("quire_options"), ids=lambda option: option.name)
def test_bundled_options_pass(option: Option) -> None:
    check_option(option)


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (Option("Max Tokens", int, 1, "help"), "cannot be typed in a flag"),
        (Option("tokens", int, 1, " "), "no help text"),
        (Option("tokens", int, "1", "help"), "not of type int"),
        (Option("tokens", int, True, "help"), "not of type int"),
        (Option("names", list, ["a"], "help"), "becomes"),
        (Option("names", dict, {"a": 1}, "help"), "cannot be typed"),
    ],
)
def test_a_faulty_option_is_noticed(option: Option, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_option(option)


@pytest.mark.parametrize("demo", BUNDLED.all("quire_demo_models"), ids=lambda demo: demo.name)
def test_bundled_demo_models_pass(demo: DemoModel) -> None:
    check_demo_model(demo)


def test_a_faulty_demo_model_is_noticed(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "model")

    def demo(**changed: Any) -> DemoModel:
        return DemoModel(**{"name": "demo", "summary": "tiny", "folder": lambda: folder, **changed})

    check_demo_model(demo())
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    for changed, sentence in (
        ({"summary": ""}, "no summary"),
        ({"folder": lambda: tmp_path / "absent"}, "is no folder"),
        ({"adapters": lambda: {"a": adapter}}, "has no adapter_config.json"),
    ):
        with pytest.raises(AssertionError, match=sentence):
            check_demo_model(demo(**changed))
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(AssertionError, match="adapter a has no weights"):
        check_demo_model(demo(adapters=lambda: {"a": adapter}))
    bare = shutil.copytree(folder, tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(AssertionError, match="has no weights"):
        check_demo_model(demo(folder=lambda: bare))
