"""Arguments of vLLM: the same answer on the command line, in YAML and in Python."""

from pathlib import Path
from typing import Any

import pytest

from quire import LLM
from quire.cli import main
from quire.commands.serve import COMMAND
from quire.errors import ConfigError, StartupError
from quire.from_vllm.arguments import ARGUMENTS, without_vllm_arguments
from quire.llm.arguments import SETTINGS, known_settings
from quire.settings.model_config import ModelConfig
from quire.settings.model_values import read_config
from quire.settings.options import model_configs, new_parser, normalize_flags
from quire.settings.server_config import ServerConfig


def parse(*words: str) -> dict[str, Any]:
    parser = new_parser("platform serve", "test")
    COMMAND.configure(parser)
    return vars(parser.parse_args(normalize_flags(words)))


def test_no_argument_that_is_only_vllms_is_a_setting_too() -> None:
    assert not set(ARGUMENTS) & {*SETTINGS, *ServerConfig.__dataclass_fields__}


def test_the_switch_for_log_lines_is_the_servers_and_accepted_by_the_class() -> None:
    assert parse("--disable-log-stats")["disable_log_stats"] is True
    assert known_settings({"disable_log_stats": True}) == {}


def test_several_engine_processes_are_the_servers() -> None:
    assert parse("-dp", "2")["data_parallel_size"] == 2
    assert known_settings({"data_parallel_size": 1}) == {}
    with pytest.raises(TypeError, match=r"platform serve --data-parallel-size"):
        known_settings({"data_parallel_size": 2})
    for wrong in (0, -1, 257):
        with pytest.raises(ConfigError, match="--data-parallel-size must be from 1 to 256"):
            ServerConfig(data_parallel_size=wrong)


def test_a_setting_of_the_server_may_be_none_in_python() -> None:
    assert known_settings({"otlp_traces_endpoint": None}) == {}
    with pytest.raises(TypeError, match=r"setting of the server \(platform serve --otlp-traces-endpoint\)"):
        known_settings({"otlp_traces_endpoint": "http://localhost:4318"})


@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_argument_is_accepted_on_the_command_line_and_in_python_at_the_same_values(name: str) -> None:
    accepted = ARGUMENTS[name]
    for value in accepted.values or ("anything", 7):
        assert without_vllm_arguments({name: value}) == {}
        flag = "--" + name.replace("_", "-")
        words = [flag if value else f"--no-{flag[2:]}"] if accepted.is_switch else [flag, str(value)]
        assert parse(*words) == parse()


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (["--api-server-count", "2"], {"api_server_count": 2}),
        (["--speculative-draft-tensor-parallel-size", "2"], {"speculative_draft_tensor_parallel_size": 2}),
        (["--worker-use-ray"], {"worker_use_ray": True}),
        (["--cpu-offload-gb", "4"], {"cpu_offload_gb": 4}),
        (["--headless"], {"headless": True}),
    ],
)
def test_what_is_not_there_is_refused_with_one_sentence_on_the_command_line_and_in_python(
    words: list[str], settings: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        LLM("m", **settings)
    assert f"{words[0].split('=')[0]} can only be" in refused.value.message
    assert main(["serve", "m", *words]) == 2
    assert capsys.readouterr().err == f"platform: error: {refused.value.message}\n"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("block_size", r"no argument 'block_size'\. Did you mean 'page_size'\?"),
        ("guided_decoding_backend", "Did you mean 'structured_outputs_backend'"),
        ("port", r"it is a setting of the server \(platform serve --port\)"),
        ("nothing_like_it", "it takes activation_bits, allow_private_media_addresses, "),
    ],
)
def test_an_unknown_argument_of_the_class_leads_to_the_right_one(name: str, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        known_settings({name: 1})


def test_a_manifest_made_for_vllm_starts_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "model: a/b\nserved-model-name: small\nhost: 0.0.0.0\nport: 6379\nuvicorn-log-level: warning\n"
        "tensor-parallel-size: 1\nenforce-eager: true\ndisable-log-requests: true\nmax_model_len: 4k\nswap_space: 4\n"
    )
    values = parse("--config", str(file))
    server = read_config(ServerConfig, values)
    assert (server.host, server.port, server.log_level) == ("0.0.0.0", 6379, "warning")
    (model,) = model_configs(values)
    assert (model.model, model.name, model.max_model_len, model.swap_space) == ("a/b", "small", 4000, 4.0)


def test_a_manifest_that_asks_for_what_is_not_there_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("model: a/b\napi-server-count: 2\n")
    with pytest.raises(StartupError, match="--api-server-count can only be 1 here, got 2: one process answers HTTP"):
        parse("--config", str(file))


def test_models_of_one_server_may_have_them_too() -> None:
    (model,) = model_configs({"models": [{"model": "a/b", "enforce_eager": True}], **vars_of_defaults()})
    assert model.model == "a/b"
    with pytest.raises(ConfigError, match="--api-server-count can only be 1"):
        model_configs({"models": [{"model": "a/b", "api-server-count": 2}], **vars_of_defaults()})


def vars_of_defaults() -> dict[str, Any]:
    return {name: value for name, value in vars(ModelConfig()).items() if name != "model"}


def test_what_is_accepted_for_vllms_sake_is_not_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    shown = capsys.readouterr().out
    assert "--max-seq-len-to-capture" not in shown
    assert "--uvicorn-log-level" in shown
