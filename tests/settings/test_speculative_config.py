"""The settings of speculative decoding: the JSON object, vLLM's older flags, and what is refused at the start."""

import json
from typing import Any

import pytest

from quire import LLM
from quire.cli import main
from quire.commands.serve import COMMAND
from quire.errors import ConfigError
from quire.from_vllm.arguments import SPECULATIVE_KEYS
from quire.hooks.registry import load
from quire.settings.model_config import ModelConfig
from quire.settings.options import model_configs, new_parser, normalize_flags
from quire.settings.speculative_config import KEYS, SpeculativeConfig

REGISTRY = load(["llama"])


def parsed(*words: str) -> ModelConfig:
    parser = new_parser("platform serve", "test")
    COMMAND.configure(parser)
    (config,) = model_configs(vars(parser.parse_args(normalize_flags(["m", *words]))))
    return config


def read(**given: Any) -> SpeculativeConfig | None:
    return SpeculativeConfig.from_registry(ModelConfig(**given).speculation, REGISTRY)


def test_there_is_no_drafter_by_default() -> None:
    assert read() is None
    assert read(speculative_config=None) is None


def test_the_bundled_drafters_are_loaded_whatever_plugins_are_chosen() -> None:
    assert "ngram" in REGISTRY.by_hook("quire_drafters")
    assert "ngram" in load([]).by_hook("quire_drafters")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--speculative-model", "[ngram]", "--num-speculative-tokens", "3"], {"method": "ngram", "count": 3}),
        (["--speculative-model", "ngram", "--ngram-prompt-lookup-max", "6"], {"prompt_lookup_max": 6}),
        (["--spec-method", "ngram", "--spec-tokens", "7"], {"method": "ngram", "count": 7}),
        (["--ngram-prompt-lookup-max=5", "--ngram-prompt-lookup-min=2"], {"method": "ngram", "prompt_lookup_min": 2}),
        (["--speculative-method", "ngram", "--spec-acceptance", "exact"], {"acceptance": "exact"}),
        (["--speculative-config", '{"method": "ngram_gpu"}'], {"method": "ngram", "count": 5}),
        (
            ["--speculative-config", '{"method": "ngram", "prompt_lookup_max": 4}', "--num-speculative-tokens", "2"],
            {"prompt_lookup_max": 4, "count": 2},
        ),
        (
            ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}', "--spec-tokens", "2"],
            {"count": 2},
        ),
    ],
)
def test_flags_and_the_json_object_say_the_same(words: list[str], expected: dict[str, Any]) -> None:
    found = SpeculativeConfig.from_registry(parsed(*words).speculation, REGISTRY)
    assert found is not None
    known = {"method": found.method, "count": found.num_speculative_tokens, "acceptance": found.acceptance}
    assert expected.items() <= {**known, **found.settings}.items()


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["--speculative-model", "org/small"], "model", "org/small"),
        (["--speculative-model", "m2", "--speculative-lora", "mine"], "lora", "mine"),
        (["--spec-model", "s", "--spec-decoding-acceptance-method", "rejection_sampler"], "acceptance", "rejection"),
        (["--spec-model", "s", "--spec-acceptance", "typical_acceptance_sampler"], "acceptance", "typical"),
        (
            ["--speculative-config", '{"model": "s", "acceptance_method": "rejection_sampler"}'],
            "acceptance",
            "rejection",
        ),
        (["--speculative-config", '{"model": null, "method": "ngram"}'], "method", "ngram"),
    ],
)
def test_a_flag_sets_its_key(words: list[str], key: str, value: str) -> None:
    assert parsed(*words).speculation[key] == value


def test_python_takes_vllms_other_names_too() -> None:
    for settings in ({"spec_tokens": 0}, {"num_speculative_tokens": 0}):
        with pytest.raises(ConfigError, match=r"`num_speculative_tokens` .* must be from 1 to 64; got 0"):
            LLM("no/model", spec_method="ngram", **settings)


def test_a_model_of_several_has_a_drafter_of_its_own() -> None:
    models = json.dumps([{"model": "a", "spec_method": "ngram", "num_speculative_tokens": 2}, {"model": "b"}])
    parser = new_parser("platform serve", "test")
    COMMAND.configure(parser)
    first, second = model_configs(vars(parser.parse_args(["--models", models])))
    assert first.speculation == {"method": "ngram", "num_speculative_tokens": 2}
    assert not second.speculation


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"method": "telepathy"}, r"`method` of --speculative-config must be one of .*ngram.*; got 'telepathy'"),
        ({"method": ["ngram"]}, r"`method` of --speculative-config must be one of"),
        (
            {"method": "ngram", "promt_lookup_max": 3},
            r"the method ngram has no setting .* Did you mean 'prompt_lookup_max'",
        ),
        ({"method": "ngram", "num_speculative_tokens": 0}, "must be from 1 to 64; got 0"),
        ({"method": "ngram", "num_speculative_tokens": 10_000}, "must be from 1 to 64; got 10000"),
        ({"method": "ngram", "num_speculative_tokens": 2.5}, "must be from 1 to 64; got 2.5"),
        ({"method": "ngram", "num_speculative_tokens": True}, "must be from 1 to 64; got True"),
        ({"method": "ngram", "acceptance": "always"}, r"`acceptance` .* must be one of exact.*; got 'always'"),
        ({"method": "ngram", "adaptive": "yes"}, "`adaptive` of --speculative-config must be true or false"),
        (
            {"method": "ngram", "draft_tensor_parallel_size": 2},
            "can only be 1 here, got 2: a drafter runs on the device",
        ),
        ({"method": "ngram", "parallel_drafting": True}, "can only be False here"),
        ({"method": "ngram", "attention_backend": "FLASH_ATTN"}, "can only be left out here"),
        ("ngram", "--speculative-config must be a JSON object; got 'ngram'"),
        ([["method", "ngram"]], "--speculative-config must be a JSON object"),
    ],
)
def test_a_wrong_setting_is_refused_with_a_sentence(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(speculative_config=given)


@pytest.mark.parametrize(
    "given",
    [
        {"draft_tensor_parallel_size": 1, "enforce_eager": True, "disable_padded_drafter_batch": False},
        {"disable_by_batch_size": 32, "rejection_sample_method": "standard", "parallel_drafting": False},
        dict.fromkeys(SPECULATIVE_KEYS),
    ],
)
def test_keys_of_vllm_that_mean_nothing_here_are_accepted(given: dict[str, Any]) -> None:
    found = read(speculative_config={"method": "ngram", **given})
    assert found is not None
    assert not found.settings


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 5}, "num_speculative_tokens": 3},
            "--num-speculative-tokens 3 contradicts the num_speculative_tokens 5 of another setting",
        ),
        (
            {"speculative_model": "[ngram]", "speculative_method": "medusa"},
            "contradicts the method 'medusa' of another setting",
        ),
        ({"num_speculative_tokens": 3}, "--num-speculative-tokens needs a drafter"),
        ({"spec_acceptance": "exact"}, "--spec-acceptance needs a drafter"),
        ({"speculative_lora": "mine"}, "--speculative-lora needs a drafter"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ModelConfig(**settings)


def test_prompt_lookup_has_no_draft_model() -> None:
    with pytest.raises(ConfigError, match="the method ngram has no setting 'model'"):
        read(speculative_method="ngram", speculative_model="small")


def test_every_setting_of_a_key_is_a_setting() -> None:
    assert KEYS.keys() <= ModelConfig.__dataclass_fields__.keys()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--speculative-config", '{"method": "telepathy"}'], "`method` of --speculative-config must be one of"),
        (["--num-speculative-tokens", "0", "--spec-method", "ngram"], "must be from 1 to 64; got 0"),
        (["--num-speculative-tokens", "4"], "--num-speculative-tokens needs a drafter"),
    ],
)
def test_the_command_says_so_before_a_model_is_loaded(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "no/model", *words]) == 2
    assert said in capsys.readouterr().err
