"""Names and import paths that scripts written for vLLM use."""

import importlib
from pathlib import Path
from typing import Any

import pytest

import quire
from quire import BeamSearchParams, GuidedDecodingParams, SamplingParams, StructuredOutputsParams
from quire.engine_process.wire.protocol import Submit, decode_to_engine, encode
from quire.entrypoints.chat_utils import load_chat_template
from quire.errors import BadRequest, ConfigError
from quire.types import LoRARequest, Prompt, Request


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("quire", "LLM LLMEngine AsyncLLMEngine EngineArgs AsyncEngineArgs SamplingParams PoolingParams RequestOutput"),
        ("quire.sampling_params", "SamplingParams BeamSearchParams GuidedDecodingParams StructuredOutputsParams"),
        ("quire.inputs", "TextPrompt TokensPrompt"),
        ("quire.lora.request", "LoRARequest"),
        ("quire.entrypoints.chat_utils", "load_chat_template"),
        ("quire.entrypoints.openai.api_server", "main"),
    ],
)
def test_import_paths_lead_to_the_same_things(module: str, names: str) -> None:
    for name in names.split():
        assert callable(getattr(importlib.import_module(module), name))
    assert importlib.import_module("quire.lora.request").LoRARequest is LoRARequest


def test_a_name_that_plugins_stand_for_says_so() -> None:
    with pytest.raises(ImportError, match="quire has no ModelRegistry: architectures come from plugins"):
        from quire import ModelRegistry  # noqa: F401
    with pytest.raises(AttributeError):
        quire.NothingLikeIt  # noqa: B018


def test_guided_decoding_is_structured_outputs_under_its_older_name() -> None:
    assert GuidedDecodingParams is StructuredOutputsParams
    params = SamplingParams(guided_decoding=GuidedDecodingParams(choice=["a", "b"]))
    assert params.structured is not None
    assert params.structured.kind == "choice"


@pytest.mark.parametrize("given", [{"use_beam_search": True, "best_of": 3}, {"length_penalty": 2.0}])
def test_older_fields_of_a_beam_search_lead_to_its_parameters(given: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=r"asked for with BeamSearchParams\(beam_width"):
        SamplingParams(**given)
    assert SamplingParams(use_beam_search=False, length_penalty=1.0, early_stopping=False) == SamplingParams()


def test_functions_of_logits_are_checked_and_stay_in_their_process() -> None:
    with pytest.raises(BadRequest, match="`logits_processors` must be a list of functions"):
        SamplingParams(logits_processors=["a.b"])
    request = Request(id="1", prompt=Prompt(token_ids=(1,)), params=SamplingParams(logits_processors=[max]))
    with pytest.raises(BadRequest, match="cannot be sent"):
        encode(Submit.from_request("m", request))


def test_parameters_travel_as_before() -> None:
    for params in (SamplingParams(seed=3, stop=["x"]), BeamSearchParams(beam_width=2, max_tokens=3)):
        message = decode_to_engine(
            encode(Submit.from_request("m", Request(id="1", prompt=Prompt(token_ids=(1,)), params=params)))
        )
        assert message.to_request().params == params  # type: ignore[union-attr]


def test_temperatures_end_where_vllms_do() -> None:
    assert SamplingParams(temperature=2).temperature == 2
    with pytest.raises(BadRequest, match="`temperature` must be a number from 0 to 2"):
        SamplingParams(temperature=2.1)


def test_a_chat_template_is_read_from_a_file_or_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("{{ messages }}")
    assert load_chat_template(file) == load_chat_template("{{ messages }}") == "{{ messages }}"
    assert load_chat_template(None) is None
    with pytest.raises(ConfigError, match="neither a file nor a template"):
        load_chat_template("missing.jinja")


def test_the_servers_module_is_the_serve_command(capsys: pytest.CaptureFixture[str]) -> None:
    from quire.entrypoints.openai.api_server import main

    with pytest.raises(SystemExit):
        main(["--help"])
    assert "usage: platform serve" in capsys.readouterr().out
