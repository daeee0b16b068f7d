"""How many log-probabilities may be asked for, and how large an answer may become: said before anything runs."""

import json

import pytest
from fake_client import PretendClient, http, info, pretend_app
from live_server import chunks_of

from quire.errors import BadRequest, ConfigError
from quire.params.pooling import PoolingParams
from quire.params.sampling import BeamSearchParams, SamplingParams, check_logprobs
from quire.server.service.answers import AnswerShape, bounded_params, check_token_vectors
from quire.settings.model_config import ModelConfig
from quire.settings.server_config import ServerConfig
from quire.types import Prompt

HI = [{"role": "user", "content": "hi"}]
MANY = {"logprobs": True, "top_logprobs": 20}


def bounded(params, most=10_000, **shape):
    given = {"num_prompts": 1, "num_prompt_tokens": 10, "streamed": False, **shape}
    return bounded_params(params, AnswerShape(**given), 1000, most)


@pytest.fixture
def app(tmp_path):
    return lambda config=None, **changes: pretend_app(
        tmp_path, PretendClient(info(**changes)), config or ServerConfig()
    )


@pytest.mark.parametrize("count", [-1, 21])
@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/completions", {"prompt": "a"}, "prompt_logprobs"),
        ("/v1/completions", {"prompt": "a"}, "logprobs"),
        ("/generate", {"prompt": "a"}, "prompt_logprobs"),
        ("/v1/chat/completions", {"messages": HI}, "prompt_logprobs"),
        ("/v1/chat/completions", {"messages": HI, "logprobs": True}, "top_logprobs"),
    ],
)
async def test_more_log_probabilities_than_the_model_gives_are_refused(app, path, body, field, count):
    async with http(app()) as client:
        answer = await client.post(path, json={**body, field: count})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field


async def test_a_model_may_give_all(app):
    async with http(app(max_logprobs=-1)) as client:
        for count in (-1, 100):
            answer = await client.post(
                "/v1/completions", json={"prompt": "a", "max_tokens": 1, "prompt_logprobs": count}
            )
            assert answer.status_code == 200


def test_the_error_names_the_setting():
    with pytest.raises(BadRequest, match="--max-logprobs"):
        check_logprobs("logprobs", -1, 20)
    with pytest.raises(BadRequest, match="--max-logprobs"):
        check_logprobs("logprobs", 3, 2)


def test_max_logprobs_of_less_than_minus_1_means_nothing():
    with pytest.raises(ConfigError):
        ModelConfig(max_logprobs=-2)


@pytest.mark.parametrize(
    ("params", "shape", "param"),
    [
        (SamplingParams(max_tokens=10**6), {}, "max_tokens"),
        (SamplingParams(max_tokens=100, logprobs=20), {}, "logprobs"),
        (SamplingParams(max_tokens=1, prompt_logprobs=20), {}, "prompt_logprobs"),
        (SamplingParams(max_tokens=100, n=10), {}, "max_tokens"),
        (SamplingParams(max_tokens=100), {"num_prompts": 10}, "max_tokens"),
        (SamplingParams(max_tokens=1, prompt_logprobs=-1), {"num_prompt_tokens": 1}, "prompt_logprobs"),
        (SamplingParams(max_tokens=1, prompt_logprobs=1, n=5), {"prompt_copies": 5}, "prompt_logprobs"),
        (BeamSearchParams(beam_width=10, max_tokens=100), {}, "max_tokens"),
    ],
)
def test_an_answer_that_may_be_too_large_is_refused(params, shape, param):
    with pytest.raises(BadRequest, match="--max-response-bytes") as refused:
        bounded(params, **shape)
    assert refused.value.param == param


def test_a_stream_may_be_as_long_as_it_likes():
    params = SamplingParams(max_tokens=10**6, logprobs=20)
    assert bounded(params, streamed=True) == params


def test_where_the_client_left_the_length_open_it_is_what_fits():
    fitting = bounded(SamplingParams(max_tokens=10**6, logprobs=20), has_max_tokens=False)
    assert bounded(fitting) == fitting
    assert 0 < fitting.max_tokens < 10**6


async def test_an_answer_of_any_kind_is_bounded(app):
    config = ServerConfig(max_response_bytes=1000)
    async with http(app(config)) as client:
        for path, body in (
            ("/v1/completions", {"prompt": "a", "max_tokens": 100}),
            ("/generate", {"prompt": "a", "max_tokens": 100}),
            ("/v1/chat/completions", {"messages": HI, "max_tokens": 100}),
            ("/v1/chat/completions", {"messages": HI, "max_tokens": 50, **MANY}),
        ):
            answer = await client.post(path, json=body)
            assert answer.status_code == 400
            assert "--max-response-bytes" in answer.json()["error"]["message"]
        assert (await client.post("/v1/chat/completions", json={"messages": HI})).status_code == 200


async def test_a_large_answer_says_what_a_small_one_says(app):
    body = {"messages": HI, "max_tokens": 5, "temperature": 1, "seed": 1, "prompt_logprobs": 20, **MANY}
    async with http(app()) as client:
        small = (await client.post("/v1/chat/completions", json=body)).json()
        large = (await client.post("/v1/chat/completions", json={**body, "n": 64})).json()
    assert large["choices"][0] == small["choices"][0]
    assert large["prompt_logprobs"] == small["prompt_logprobs"]
    assert len(large["choices"]) == 64


async def test_an_echo_with_log_probabilities_streams_in_order(app):
    body = {"prompt": "Say", "max_tokens": 5, "echo": True, "logprobs": 2, "temperature": 0}
    async with http(app()) as client:
        whole = (await client.post("/v1/completions", json=body)).json()["choices"][0]
        stream = (await client.post("/v1/completions", json={**body, "stream": True})).text
    chunks = [choice for chunk in chunks_of(stream) for choice in json.loads(chunk)["choices"]]
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    tokens = [token for chunk in chunks if chunk["logprobs"] for token in chunk["logprobs"]["tokens"]]
    assert tokens == whole["logprobs"]["tokens"]


def test_vectors_of_each_token_are_bounded_together() -> None:
    prompts, model = [Prompt(token_ids=(1,) * 256)] * 512, info(embedding_size=128, labels=("a", "b"))
    with pytest.raises(BadRequest, match=r"128 numbers for each token.*--max-response-bytes"):
        check_token_vectors(PoolingParams(task="token_embed"), prompts, model, 32 << 20)
    check_token_vectors(PoolingParams(task="token_classify"), prompts, model, 32 << 20)
    check_token_vectors(PoolingParams(task="embed"), prompts, model, 32 << 20)
