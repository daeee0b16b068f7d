"""Errors of the command line: one line, with a near name, and where the setting stands."""

import re
from dataclasses import fields

import pytest

from quire.cli import main
from quire.settings.flag_parser import unknown_variables
from quire.settings.model_config import ModelConfig
from quire.settings.options import model_configs, model_list
from quire.settings.server_config import ServerConfig
from quire.settings.setting_groups import grouped


def refused(capsys, *words):
    """What is printed for a command line that cannot be read."""
    try:
        status = main(list(words))
    except SystemExit as end:
        status = end.code
    printed = capsys.readouterr()
    assert status == 2
    assert printed.err.count("\n") == 1, printed.err
    assert printed.out == ""
    return printed.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve", "--prot", "9"], "unknown option --prot; did you mean --port? See `platform serve --help`."),
        (["serve", "--port", "abc"], "--port: 'abc' is not a whole number"),
        (["serve", "--dtype", "int4"], "invalid choice: 'int4'"),
        (["bench", "throughput", "--num-prompt", "3"], "did you mean --num-prompts?"),
        (["run-batch"], "required: -i/--input-file, -o/--output-file"),
        (["chat", "demo-chat"], "unexpected argument 'demo-chat'"),
        (["serv"], "Did you mean 'serve'?"),
        (["serve", "--plugins", "llama,+qwen"], "begin the list with +"),
        (["serve", "demo-chta"], "Did you mean the demo 'demo-chat'?"),
    ],
)
def test_what_is_misspelt_gets_one_line_with_the_near_name(capsys, words, said):
    assert said in refused(capsys, *words)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("host: a\nprot: 3\n", "line 2: unknown setting 'prot'; did you mean port?"),
        ("host: a\nport: abc\n", "line 2: --port: 'abc' is not a whole number"),
        ("host: a\nport: [\n", "line 3: invalid YAML"),
        ("- 1\n", "must map settings to values"),
        ("\nmodels:\n  - {name: a, model: ./x, max_lenght: 3}\n", "a: unknown setting 'max_lenght'; did you mean"),
    ],
)
def test_errors_in_a_yaml_file_name_the_file_and_the_line(capsys, tmp_path, text, said):
    file = tmp_path / "serve.yaml"
    file.write_text(text)
    printed = refused(capsys, "serve", "--config", str(file))
    assert said in printed
    assert "max_lenght" in said or str(file) in printed


def test_an_error_in_a_variable_names_the_variable(capsys, monkeypatch):
    monkeypatch.setenv("QUIRE_PORT", "abc")
    assert "QUIRE_PORT: --port: 'abc' is not a whole number" in refused(capsys, "serve")


def test_variables_that_are_no_settings_are_named_with_a_near_one(capsys, monkeypatch):
    assert unknown_variables(["QUIRE_PROT", "QUIRE_PORT", "HOME"], ["QUIRE_PORT"]) == [
        "the environment variable QUIRE_PROT is not a setting and is ignored; did you mean QUIRE_PORT?"
    ]
    monkeypatch.setenv("QUIRE_PROT", "1")
    monkeypatch.setenv("QUIRE_MAX_MODEL_LEN", "64")
    assert main(["plugins", "--json"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "platform: warning: the environment variable QUIRE_PROT is not a setting and is ignored; "
        "did you mean QUIRE_PORT?"
    ]


@pytest.mark.parametrize("text", ["demo-chat", '["demo-chat"]', '[{"model": "demo-chat"}]'])
def test_models_in_yaml_may_be_one_name_or_a_list_of_them(text):
    (config,) = model_configs({"models": model_list(text)})
    assert config.model == "demo-chat"


def test_models_in_yaml_may_have_names_as_on_the_command_line():
    one, two = model_configs({"models": model_list('["a=./x", "org/y"]')})
    assert (one.served_model_name, one.model, two.model) == (("a",), "./x", "org/y")


def helped(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main([*words, "--help"])
    assert end.value.code == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("words", [["serve"], ["bench", "throughput"], ["bench", "serve"], ["run-batch"], ["chat"]])
def test_help_shows_defaults_once_and_only_where_there_are_some(capsys, words):
    text = helped(capsys, *words)
    for wrong in ("(default: None)", "(default: )", "(default: ())", "('*',)"):
        assert wrong not in text
    assert not re.search(r"\(default: [^)]*\)\.? \(default:", text)
    assert "(default: " in text


def test_help_of_serve_begins_with_examples_and_has_headings(capsys):
    text = helped(capsys, "serve")
    assert text.startswith("usage: platform serve [MODEL ...] [options] Serve models")
    assert text.index("platform serve Qwen") < text.index("--port N Port to listen on (default: 8000)")
    for heading in ("HTTP:", "scheduling:", "memory:", "adapters:", "plugins:", "options of plugins:"):
        assert heading in text


def test_help_of_clients_shows_no_flags_of_plugins_and_never_a_key(capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    text = helped(capsys, "chat")
    assert not [flag for flag in ("--plugins", "--enable-lora", "--trace-hooks", "frames") if flag in text]
    assert "sk-very-secret" not in text


@pytest.mark.parametrize("word", ["-V", "--version", "version"])
def test_the_version_can_be_asked_for_in_three_ways(capsys, word):
    assert main([word]) == 0
    assert capsys.readouterr().out[0].isdigit()


def test_flags_of_plugins_may_stand_before_the_command(capsys):
    assert main(["--plugins", "llama", "plugins", "--json"]) == 0
    early = capsys.readouterr().out
    assert main(["plugins", "--plugins", "llama", "--json"]) == 0
    assert capsys.readouterr().out == early


def test_every_setting_has_a_heading_of_its_kind_in_the_help() -> None:
    names = [field.name for config in (ModelConfig, ServerConfig) for field in fields(config)]
    assert dict(grouped(names)).get("other", []) == []
