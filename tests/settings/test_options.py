import pytest

from quire.errors import ConfigError
from quire.settings.model_config import ModelConfig
from quire.settings.model_values import read_config, whole_number
from quire.settings.options import (
    add_config,
    model_configs,
    model_list,
    new_parser,
    normalize_flags,
)
from quire.settings.server_config import ServerConfig


@pytest.fixture
def parser():
    parser = new_parser("platform serve", "test")
    parser.add_argument("models_given", nargs="*")
    parser.add_argument("--models", type=model_list, default=[])
    add_config(parser, ModelConfig, ServerConfig)
    return parser


def parse(parser, *words):
    return vars(parser.parse_args(normalize_flags(words)))


def test_every_setting_round_trips_through_its_flag_with_its_default(parser):
    values = parse(parser)
    assert read_config(ModelConfig, values) == ModelConfig()
    assert read_config(ServerConfig, values) == ServerConfig()


def test_dashes_and_underscores_are_both_accepted(parser):
    assert parse(parser, "--max_model_len=5")["max_model_len"] == 5
    assert parse(parser, "--max-model-len", "5")["max_model_len"] == 5
    assert normalize_flags(["--a_b=c_d", "--", "--e_f"]) == ["--a-b=c_d", "--", "--e_f"]


@pytest.mark.parametrize(
    ("text", "number"), [("17", 17), ("4k", 4000), ("4K", 4096), ("1.5k", 1500), ("2G", 2**31), ("-1", -1)]
)
def test_whole_numbers_are_read_as_people_write_them(text, number):
    assert whole_number(text) == number


@pytest.mark.parametrize("text", ["", "x", "1.5", "4kk", "1e3"])
def test_what_is_no_whole_number_is_an_error(parser, text, capsys):
    with pytest.raises(SystemExit):
        parse(parser, "--max-num-seqs", text)
    assert "is not a whole number" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["image=4,video=1", " image = 4 , video = 1 ", '{"image": 4, "video": 1}'])
def test_limits_by_modality_are_read_in_both_forms(parser, text):
    assert parse(parser, "--limit-mm-per-prompt", text)["limit_mm_per_prompt"] == {"image": 4, "video": 1}


@pytest.mark.parametrize("text", ["image", "image=x", "image=4;video=1", "[4]", ""])
def test_what_is_no_map_is_an_error(parser, text, capsys):
    with pytest.raises(SystemExit):
        parse(parser, "--limit-mm-per-prompt", text)
    assert "JSON" in capsys.readouterr().err


def test_command_line_wins_over_environment_wins_over_file(parser, tmp_path, monkeypatch):
    file = tmp_path / "quire.yaml"
    file.write_text("port: 1\nmax_num_seqs: 1\npage-size: 1\n")
    monkeypatch.setenv("QUIRE_PORT", "2")
    monkeypatch.setenv("QUIRE_MAX_NUM_SEQS", "2")
    values = parse(parser, "--config", str(file), "--port", "3")
    assert (values["port"], values["max_num_seqs"], values["page_size"]) == (3, 2, 1)


def test_a_yaml_file_lists_models_with_their_own_settings(parser, tmp_path):
    file = tmp_path / "quire.yaml"
    file.write_text(
        "max-num-seqs: 9\nenable_prefix_caching: false\napi_key: [k1, k2]\n"
        "override_generation_config: {temperature: 0.3}\n"
        "models:\n  - {name: a, model: ./x, dtype: float32}\n  - {name: b, model: org/y, max_num_seqs: 5}\n"
    )
    values = parse(parser, "--config", str(file))
    a, b = model_configs(values)
    assert (a.model, a.served_model_name, a.dtype, a.max_num_seqs) == ("./x", ("a",), "float32", 9)
    assert (b.model, b.served_model_name, b.dtype, b.max_num_seqs) == ("org/y", ("b",), "auto", 5)
    assert not a.enable_prefix_caching
    assert a.override_generation_config == {"temperature": 0.3}
    assert read_config(ServerConfig, values).api_key == ("k1", "k2")


def test_models_may_be_a_map_from_name_to_settings(parser, tmp_path):
    file = tmp_path / "quire.yaml"
    file.write_text("models:\n  a: ./x\n  b: {path: ./y}\n")
    a, b = model_configs(parse(parser, "--config", str(file)))
    assert (a.model, b.model, a.served_model_name, b.served_model_name) == ("./x", "./y", ("a",), ("b",))


def test_positional_models_may_be_named(parser):
    a, b = model_configs(parse(parser, "a=./x", "org/y"))
    assert (a.model, a.served_model_name) == ("./x", ("a",))
    assert (b.model, b.served_model_name) == ("org/y", ("org/y",))


def test_one_model_takes_all_served_names(parser):
    (config,) = model_configs(parse(parser, "./x", "--served-model-name", "a", "b"))
    assert config.served_model_name == ("a", "b")


def test_two_models_of_one_name_are_refused(parser):
    with pytest.raises(ConfigError, match="Two models are named 'a'"):
        model_configs(parse(parser, "a=./x", "a=./y"))


def test_names_of_one_model_are_refused_for_several(parser):
    with pytest.raises(ConfigError, match="--served-model-name is for a single model, but there are 2: a, org/y"):
        model_configs(parse(parser, "a=./x", "org/y", "--served-model-name", "z"))


def test_an_unknown_setting_of_a_model_is_refused_by_name(parser):
    with pytest.raises(ConfigError, match="unknown setting 'max_lenght'"):
        model_configs(parse(parser, "--models", '[{"name": "a", "model": "./x", "max_lenght": 3}]'))


def test_an_unknown_key_of_the_file_is_refused_by_name(parser, tmp_path, capsys):
    file = tmp_path / "quire.yaml"
    file.write_text("prt: 9000\n")
    with pytest.raises(SystemExit):
        parse(parser, "--config", str(file))
    assert "prt" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["a: [", "- 1\n- 2\n"])
def test_a_file_that_is_no_map_is_refused(parser, tmp_path, text, capsys):
    file = tmp_path / "quire.yaml"
    file.write_text(text)
    with pytest.raises(SystemExit):
        parse(parser, "--config", str(file))
    assert capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--port", "70000"], "--port must be from 0 to 65535"),
        (["--max-num-seqs", "0"], "--max-num-seqs must be above 0"),
        (["--gpu-memory-utilization", "1.5"], "at most 1"),
        (["--preemption", "swap"], "needs --swap-space"),
        (["--ssl-keyfile", "k"], "must be given together"),
        (["--engine-timeout-s", "0"], "--engine-timeout-s must be above 0"),
        (["--shutdown-timeout-s", "-1"], "--shutdown-timeout-s must be at least 0"),
        (["--max-restarts", "-1"], "--max-restarts must be at least 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(parser, words, message):
    values = parse(parser, *words)
    with pytest.raises(ConfigError, match=message):
        read_config(ModelConfig, values)
        read_config(ServerConfig, values)
