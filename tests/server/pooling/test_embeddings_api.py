"""`/v1/embeddings`: what comes in, how numbers go out, through the `openai` client where that can ask for it."""

import base64
import json

import numpy as np
import openai
import pytest
import torch
from fake_client import PretendClient, embedder, http, numbers_of, pretend_app

from quire.params.pooling import PoolingParams
from quire.settings.server_config import ServerConfig

PATH = "/v1/embeddings"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def pretend():
    return PretendClient(embedder(), embedder("plain", dimensions=None), embedder("some", dimensions=(2, 4)))


@pytest.fixture
async def client(tmp_path, pretend):
    async with http(pretend_app(tmp_path, pretend)) as client:
        yield client


@pytest.fixture
async def api(client):
    client.base_url = "http://test"
    return openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", max_retries=0, http_client=client)


def expected(pretend):
    """What the pretended model made of what came, in the order of the inputs."""
    return [numbers_of(pretend.infos[0], request) for request in pretend.requests]


async def embed(client, **body):
    answer = await client.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_an_answer_has_the_shape_clients_expect(client, pretend):
    answer = await embed(client, input="abc", model="embedder")
    (vector,) = expected(pretend)
    assert answer.pop("id").startswith("embd-")
    assert isinstance(answer.pop("created"), int)
    assert answer == {
        "object": "list",
        "model": "embedder",
        "data": [{"index": 0, "object": "embedding", "embedding": vector.tolist()}],
        "usage": {"prompt_tokens": 3, "total_tokens": 3, "completion_tokens": 0},
    }
    assert pretend.requests[0].params == PoolingParams(task="embed")


@pytest.mark.parametrize("form", ["float", "base64", None])
async def test_the_openai_client_reads_floats_and_the_base64_it_asks_for_by_itself(api, pretend, form):
    more = {} if form is None else {"encoding_format": form}
    answer = await api.embeddings.create(model="embedder", input=["one", "two"], **more)
    for item, vector in zip(answer.data, expected(pretend), strict=True):
        if form == "base64":
            item.embedding = np.frombuffer(base64.b64decode(item.embedding), "<f4")
        assert np.array_equal(np.array(item.embedding, np.float32), vector)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 6


async def test_the_openai_client_gets_fewer_dimensions_of_a_model_that_was_trained_for_that(api, pretend):
    answer = await api.embeddings.create(model="embedder", input="abc", dimensions=4)
    assert len(answer.data[0].embedding) == 4
    assert pretend.requests[0].params.dimensions == 4


async def test_inputs_may_be_texts_or_ids_one_or_many(client, pretend):
    for given, ids in (
        ("ab", [(97, 98)]),
        ([97, 98], [(97, 98)]),
        (["a", "bc"], [(97,), (98, 99)]),
        ([[97], [98, 99]], [(97,), (98, 99)]),
    ):
        pretend.requests.clear()
        answer = await embed(client, input=given)
        assert [request.prompt.token_ids for request in pretend.requests] == ids
        assert [item["index"] for item in answer["data"]] == list(range(len(ids)))
        assert [item["embedding"] for item in answer["data"]] == [one.tolist() for one in expected(pretend)]


async def test_a_conversation_goes_through_the_chat_template(client, pretend):
    await embed(client, messages=HI)
    await embed(client, messages=HI, add_generation_prompt=True)
    ends = [request.prompt.token_ids[-1] for request in pretend.requests]
    assert ends == [256, 259]  # <|end|>, and <|assistant|>
    assert pretend.requests[0].prompt.token_ids[:3] == (258, ord("h"), ord("i"))


async def test_use_activation_reaches_the_engine(client, pretend):
    for value in (True, False, None):
        await embed(client, input="x", use_activation=value)
    assert [request.params.use_activation for request in pretend.requests] == [True, False, None]


async def test_long_inputs_are_cut_where_the_request_says(client, pretend):
    for more in ({"truncate_prompt_tokens": 2}, {"truncate_prompt_tokens": 2, "truncation_side": "left"}):
        await embed(client, input="abcd", **more)
    await embed(client, input="a" * 200, truncate_prompt_tokens=-1)
    assert [request.prompt.token_ids for request in pretend.requests] == [(97, 98), (99, 100), (97,) * 128]


async def test_a_prompt_may_fill_the_whole_context(client, pretend):
    assert (await embed(client, input="a" * 128))["usage"]["prompt_tokens"] == 128


@pytest.mark.parametrize("form", ["base64", "bytes", "bytes_only"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("order", ["native", "little", "big"])
async def test_numbers_come_in_the_type_and_order_that_were_asked_for(client, pretend, form, dtype, order):
    body = {"input": ["ab", "cde"], "encoding_format": form, "embed_dtype": dtype, "endianness": order}
    answer = await client.post(PATH, json=body)
    if form == "base64":
        parts = [base64.b64decode(item["embedding"]) for item in answer.json()["data"]]
    else:
        assert answer.headers["content-type"] == "application/octet-stream"
        size = len(answer.content) // 2
        parts = [answer.content[:size], answer.content[size:]]
    width = 4 if dtype == "float32" else 2
    for part, vector in zip(parts, expected(pretend), strict=True):
        data = np.frombuffer(part, f"{'>' if order == 'big' else '<'}u{width}").astype(f"<u{width}").tobytes()
        found = torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype))
        assert torch.equal(found, torch.from_numpy(vector).to(getattr(torch, dtype)))


async def test_a_header_says_where_the_bytes_of_each_input_are(client, pretend):
    answer = await client.post(PATH, json={"input": ["ab", "cde"], "encoding_format": "bytes"})
    about = json.loads(answer.headers["metadata"])
    assert [(item["index"], item["start"], item["end"], item["shape"]) for item in about["data"]] == [
        (0, 0, 32, [8]),
        (1, 32, 64, [8]),
    ]
    assert about["usage"]["prompt_tokens"] == 5
    assert about["id"].startswith("embd-")
    alone = await client.post(PATH, json={"input": ["ab", "cde"], "encoding_format": "bytes_only"})
    assert "metadata" not in alone.headers
    assert alone.content == answer.content


async def test_cached_tokens_are_reported_where_the_server_enables_it(tmp_path, pretend):
    app = pretend_app(tmp_path, pretend, ServerConfig(enable_prompt_tokens_details=True))
    async with http(app) as client:
        usage = (await embed(client, input=["ab", "cd"]))["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2}


async def test_fields_that_go_with_every_request_reach_the_engine(client, pretend):
    await client.post(
        PATH, json={"input": "x", "priority": 3, "cache_salt": "s", "user": "me"}, headers={"X-Request-Id": "mine"}
    )
    (request,) = pretend.requests
    assert (request.priority, request.cache_salt) == (3, "s")
    assert request.id.startswith("embd-mine-0-")
    assert (await embed(client, input="x", request_id="body"))["id"] == "embd-body"


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "input", "Exactly one"),
        ({"input": "x", "messages": HI}, "input", "Exactly one"),
        ({"input": ""}, "input", "must not be empty"),
        ({"input": []}, "body.input", "non-empty list"),
        ({"input": ["a", ""]}, "input", "Item 1 of `input`"),
        ({"input": [[1], []]}, "body.input", "non-empty list"),
        ({"input": [1, "a"]}, "body.input", "should be a string"),
        ({"input": [1.5]}, "body.input", "should be a string"),
        ({"input": {"a": 1}}, "body.input", "should be a string"),
        ({"input": [264]}, "input", "vocabulary ends at 263"),
        ({"input": [-1]}, "body.input", "token ids"),
        ({"input": "a" * 129}, "input", "maximum context length is 128 tokens, but the prompt has 129"),
        ({"input": "a", "dimensions": 9}, "dimensions", "from 1 to 8"),
        ({"input": "a", "dimensions": 0}, "dimensions", "at least 1"),
        ({"input": "a", "dimensions": 3, "model": "some"}, "dimensions", "one of 2, 4"),
        ({"input": "a", "dimensions": 8, "model": "plain"}, "dimensions", "matryoshka"),
        ({"input": "a", "normalize": True}, "normalize", "use_activation"),
        ({"input": "a", "encoding_format": "hex"}, "body.encoding_format", "bytes_only"),
        ({"input": "a", "embed_dtype": "float16"}, "embed_dtype", "base64"),
        ({"input": "a", "endianness": "big"}, "endianness", "base64"),
        ({"input": "a", "padding": "max_length"}, "body.padding", "do_not_pad"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1"),
        ({"input": "a", "truncate_prompt_tokens": 129}, "truncate_prompt_tokens", "above the maximum"),
        ({"input": "a", "cache_salt": "a/b"}, "cache_salt", "may not contain"),
        ({"input": "a", "mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs", "not supported"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages",
            "text only",
        ),
    ],
)
async def test_what_cannot_be_embedded_is_refused_with_the_reason(client, pretend, body, param, message):
    answer = await client.post(PATH, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert message in error["message"]
    assert not pretend.requests


async def test_a_request_may_have_only_so_many_inputs(tmp_path, pretend):
    async with http(pretend_app(tmp_path, pretend, ServerConfig(max_pooling_inputs=3))) as client:
        assert len((await embed(client, input=["a"] * 3))["data"]) == 3
        answer = await client.post(PATH, json={"input": ["a"] * 4})
    assert answer.status_code == 400
    assert "at most 3 items (--max-pooling-inputs), got 4" in answer.json()["error"]["message"]


async def test_a_thousand_inputs_are_answered_in_their_order(client, pretend):
    texts = [f"text {number}" for number in range(1000)]
    answer = await embed(client, input=texts, encoding_format="base64")
    by_text = {bytes(request.prompt.token_ids).decode(): request for request in pretend.requests}
    for item, text in zip(answer["data"], texts, strict=True):
        vector = numbers_of(pretend.infos[0], by_text[text])
        assert base64.b64decode(item["embedding"]) == vector.tobytes()
