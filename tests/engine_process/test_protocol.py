import math
from pathlib import Path

import msgspec
import pytest
import torch

from quire.engine_process.wire.error_info import ErrorInfo, from_error_info, to_error_info
from quire.engine_process.wire.model_changes import LoadModel, UnloadModel
from quire.engine_process.wire.protocol import (
    Abort,
    MalformedRequest,
    Ready,
    RequestRejected,
    Start,
    StatsReply,
    StepOutputs,
    Submit,
    decode_from_engine,
    decode_to_engine,
    encode,
)
from quire.errors import BadRequest, CheckpointError, ConfigError, EngineDied, PluginError, QuireError, StartupError
from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.params.structured import StructuredSpec
from quire.settings.model_config import ModelConfig
from quire.types import (
    AdapterRef,
    EngineStats,
    Media,
    ModelInfo,
    Prompt,
    Request,
    SeqDelta,
    TokenLogprobs,
    WeightedAdapter,
)


def there_and_back(message):
    return decode_to_engine(encode(message))


def request(params, **changes):
    return Request(id="r", prompt=Prompt(token_ids=(1, 2, 3)), params=params, **changes)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(
            n=2,
            stop=["a", "b"],
            stop_token_ids=[1],
            logit_bias={"3": 1.5},
            allowed_token_ids=[4, 5],
            bad_words=["x"],
            bad_word_ids=((1, 2), (3,)),
            structured=StructuredSpec(kind="regex", source="a+"),
            extra={"dry": {"deep": [1, 2.5, None]}},
            seed=-(2**63),
            max_tokens=None,
            logprobs=-1,
        ),
        BeamSearchParams(beam_width=3, max_tokens=5, length_penalty=0.5),
    ],
)
def test_a_request_arrives_as_it_was_sent(params):
    uses = (WeightedAdapter(AdapterRef(name="l", revision=2)), WeightedAdapter(AdapterRef(name="m"), -0.25))
    sent = request(params, adapters=uses, priority=-3, cache_salt="s")
    assert there_and_back(Submit.from_request("m", sent)).to_request() == sent


def test_the_prompts_text_stays_behind():
    sent = Request(id="r", prompt=Prompt(token_ids=(1,), text="secret"), params=SamplingParams())
    assert b"secret" not in encode(Submit.from_request("m", sent))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        torch.zeros(0, 4),
        torch.tensor([True, False]),
        torch.arange(12).reshape(3, 4).T,
        torch.tensor(2.5),
    ],
)
def test_tensors_of_media_arrive_bit_by_bit(tensor):
    media = Media(modality="image", start=1, length=2, digest="d", tensors={"pixels": tensor})
    sent = Request(id="r", prompt=Prompt(token_ids=(1, 2, 3), media=(media,)), params=SamplingParams())
    (found,) = there_and_back(Submit.from_request("m", sent)).to_request().prompt.media
    assert (found.modality, found.start, found.length, found.digest) == ("image", 1, 2, "d")
    assert found.tensors["pixels"].dtype == tensor.dtype
    assert torch.equal(found.tensors["pixels"], tensor)


@pytest.mark.parametrize("value", [10**30, -(10**30)])
def test_numbers_beyond_64_bits_are_the_clients_fault(value):
    with pytest.raises(BadRequest, match="64 bits"):
        encode(Submit.from_request("m", request(SamplingParams(), priority=value)))


def test_values_that_cannot_be_sent_are_the_clients_fault():
    with pytest.raises(BadRequest, match="cannot be sent"):
        encode(Submit.from_request("m", request(SamplingParams(extra={"x": object()}))))


def test_an_invalid_request_is_distinguished_from_a_broken_message():
    raw = msgspec.msgpack.decode(encode(Submit.from_request("m", request(SamplingParams()))))
    raw["params"]["params"]["temperature"] = "hot"
    unreadable = decode_to_engine(msgspec.msgpack.encode(raw))
    assert isinstance(unreadable, MalformedRequest)
    assert (unreadable.request_id, unreadable.error.kind) == ("r", "BadRequest")
    with pytest.raises(msgspec.ValidationError):
        decode_to_engine(msgspec.msgpack.encode({"type": "Abort"}))


def test_a_request_without_parameters_cannot_be_read():
    raw = msgspec.msgpack.decode(encode(Submit.from_request("m", request(SamplingParams()))))
    del raw["params"]
    assert isinstance(decode_to_engine(msgspec.msgpack.encode(raw)), MalformedRequest)


def test_settings_and_small_messages_arrive_as_they_were_sent():
    config = ModelConfig(model="m", served_model_name=("a", "b"), override_generation_config={"top_p": 0.5})
    start = Start(models=[config], plugins=["llama"], options={"p": {"x": 1}}, enable_lora=True)
    for message in (start, LoadModel(3, config), UnloadModel(4, "m"), Abort("m", "r", 2), Abort("m", "r")):
        assert there_and_back(message) == message


def test_what_the_host_says_arrives_as_it_was_sent():
    logprobs = TokenLogprobs(5, -math.inf, 3, ((1, -0.5), (5, -math.inf)))
    delta = SeqDelta(
        request_id="r",
        index=1,
        token_ids=(5,),
        logprobs=(logprobs,),
        prompt_logprobs=(None, logprobs),
        finish_reason="stop",
        stop_reason=7,
        num_cached_tokens=0,
        cumulative_logprob=-1.5,
        error=("BadRequest", "no", "tools"),
    )
    info = ModelInfo(
        name="m",
        aliases=("n",),
        root="r",
        folder="f",
        architecture="A",
        dtype="float32",
        device="cpu",
        max_model_len=1,
        vocab_size=2,
        eos_ids=(0,),
        num_pages=3,
        page_size=4,
        num_parameters=5,
        sampling_defaults={"top_k": 1},
    )
    figures = StatsReply(1, [EngineStats(model="m", iteration_tokens=(1, 2))], [{"plugin": "p", "calls": 1}])
    for message in (
        StepOutputs([delta]),
        Ready([info]),
        RequestRejected("r", ErrorInfo("BadRequest", "m", "p")),
        figures,
    ):
        assert decode_from_engine(encode(message)) == message


@pytest.mark.parametrize("kind", [BadRequest, EngineDied, CheckpointError, ConfigError, PluginError, StartupError])
def test_errors_keep_their_type_message_and_field(kind):
    found = from_error_info(to_error_info(kind("why", "field")))
    assert (type(found), found.message, found.param) == (kind, "why", "field")


def test_errors_of_others_become_ours():
    class Special(CheckpointError):
        pass

    assert type(from_error_info(to_error_info(Special("x")))) is CheckpointError
    found = from_error_info(to_error_info(KeyError("x")))
    assert (type(found), found.message) == (QuireError, "KeyError: 'x'")
    assert type(from_error_info(ErrorInfo("Unheard", "x"))) is QuireError


def test_the_protocol_needs_no_torch():
    import subprocess
    import sys

    code = "import sys, quire.engine_process.client; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])
