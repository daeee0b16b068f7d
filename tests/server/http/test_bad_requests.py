"""Every way to ask wrongly over HTTP: a 4xx in the error shape that names the field, and nothing reaches the engine."""

import json

import pytest
from fake_client import PretendClient, http, pretend_app

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    pretend = PretendClient()
    return pretend, pretend_app(tmp_path_factory.mktemp("tokenizer"), pretend)


@pytest.fixture
def pretend(shared):
    shared[0].requests.clear()
    return shared[0]


@pytest.fixture
async def client(shared):
    async with http(shared[1]) as client:
        yield client


def error_of(answer):
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == answer.status_code
    assert isinstance(error["message"], str)
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "nan"}, "temperature"),
        ({"temperature": "inf"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": -0.1}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"n": 10**6}, "n"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 10**12}, "max_tokens"),
        ({"max_tokens": 128}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 20, "max_tokens": 10}, "min_tokens"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": "x" * 5000}, "stop"),
        ({"stop_token_ids": [264]}, "stop_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [999]}, "allowed_token_ids"),
        ({"logit_bias": {"264": 1}}, "logit_bias"),
        ({"bad_words": ["a", ""]}, "bad_words"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -2}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"cache_salt": "a@b"}, "cache_salt"),
        ({"request_id": ""}, "request_id"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"use_beam_search": True, "stream": True}, "stream"),
        ({"use_beam_search": True, "n": 3, "best_of": 2}, "n"),
        ({"use_beam_search": True, "best_of": 1000}, "beam_width"),
        ({"use_beam_search": True, "stop": "x"}, "stop"),
        ({"use_beam_search": True, "stream_interval": 2}, "stream_interval"),
        ({"use_beam_search": True, "logit_bias": {"1": 1}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a+", "choice": ["a"]}}, "structured_outputs"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"suffix": "end"}, "suffix"),
        ({"prompt_embeds": "AAAA"}, "prompt_embeds"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids"),
        ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
        ({"repetition_detection": {"a": 1}}, "repetition_detection"),
    ],
    ids=json.dumps,
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_wrong_value_is_refused_by_name(client, pretend, path, body, param):
    said = {"prompt": "abc"} if path == COMPLETIONS else {"messages": HI}
    answer = await client.post(path, json={**said, **body})
    assert answer.status_code == 400, answer.text
    error = error_of(answer)
    assert (error["type"], error["param"]) == ("BadRequestError", param)
    assert pretend.requests == []


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {}, "body.prompt"),
        (COMPLETIONS, {"prompt": None}, "body.prompt"),
        (COMPLETIONS, {"prompt": []}, "body.prompt"),
        (COMPLETIONS, {"prompt": [[]]}, "body.prompt"),
        (COMPLETIONS, {"prompt": [-1]}, "body.prompt"),
        (COMPLETIONS, {"prompt": ["a", 1]}, "body.prompt"),
        (COMPLETIONS, {"prompt": {"text": "a"}}, "body.prompt"),
        (COMPLETIONS, {"prompt": ["a"] * 1025}, "body.prompt"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": "many"}, "body.max_tokens"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 1.5}, "body.max_tokens"),
        (COMPLETIONS, {"prompt": "a", "temperature": [1]}, "body.temperature"),
        (COMPLETIONS, {"prompt": "a", "logit_bias": {"x": 1}}, "body.logit_bias.x"),
        (COMPLETIONS, {"prompt": "a", "logit_bias": {"9" * 5000: 1}}, None),
        (COMPLETIONS, {"prompt": "a", "stop_token_ids": [-1]}, "body.stop_token_ids.0"),
        (COMPLETIONS, {"prompt": "a", "model": 7}, "body.model"),
        (COMPLETIONS, {"prompt": "a", "cache_salt": ""}, "body.cache_salt"),
        (COMPLETIONS, {"prompt": "a", "cache_salt": "x" * 129}, "body.cache_salt"),
        (COMPLETIONS, {"prompt": "a", "truncation_side": "middle"}, "body.truncation_side"),
        (CHAT, {}, "body.messages"),
        (CHAT, {"messages": []}, "body.messages"),
        (CHAT, {"messages": "hi"}, "body.messages"),
        (CHAT, {"messages": [{"content": "hi"}]}, "body.messages.0.role"),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, "body.messages.0.content"),
        (CHAT, {"messages": HI, "tools": [{"type": "function"}]}, "body.tools.0.function"),
        (CHAT, {"messages": HI, "response_format": {"type": "xml"}}, "body.response_format.type"),
        ("/detokenize", {}, "body.tokens"),
        ("/detokenize", {"tokens": ["x"]}, "body.tokens.0"),
        ("/tokenize", {}, "body"),
        ("/tokenize", {"prompt": "a", "messages": HI}, "body"),
        ("/generate", {"prompt": 5}, "body.prompt"),
        ("/generate", {"prompt": "a", "sampling_params": []}, "body.sampling_params"),
    ],
    ids=lambda value: json.dumps(value)[:80],
)
async def test_a_wrong_type_is_refused_by_location(client, pretend, path, body, param):
    answer = await client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error = error_of(answer)
    assert error["type"] == "Bad Request"
    if param is not None:
        assert error["param"] == param
    assert "validation error" in error["message"]
    assert len(error["message"]) < 6000
    assert pretend.requests == []


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": "", "max_tokens": 1}, "prompt"),
        (COMPLETIONS, {"prompt": "x" * 129}, "prompt"),
        (COMPLETIONS, {"prompt": "x" * 128}, "prompt"),
        (COMPLETIONS, {"prompt": "x" * 10**6}, "prompt"),
        (COMPLETIONS, {"prompt": [264]}, "prompt"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, "max_tokens"),
        (COMPLETIONS, {"prompt": "a", "logprobs": -1}, "logprobs"),
        (COMPLETIONS, {"prompt": "a", "logprobs": 21}, "logprobs"),
        (COMPLETIONS, {"prompt": "a", "logprobs": 1, "use_beam_search": True}, "logprobs"),
        (CHAT, {"messages": HI, "max_tokens": 0}, "max_tokens"),
        (CHAT, {"messages": HI, "max_completion_tokens": -5}, "max_completion_tokens"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 200}]}, "messages"),
        (CHAT, {"messages": [{"role": "", "content": "x"}]}, "messages"),
        (CHAT, {"messages": HI, "functions": [{"name": "f"}]}, "functions"),
        (CHAT, {"messages": HI, "function_call": "auto"}, "function_call"),
        (CHAT, {"messages": HI, "modalities": ["text", "audio"]}, "modalities"),
        (CHAT, {"messages": HI, "audio": {"voice": "x"}}, "audio"),
        (CHAT, {"messages": HI, "mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs"),
        (CHAT, {"messages": HI, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ],
    ids=lambda value: json.dumps(value)[:80],
)
async def test_what_the_model_or_server_cannot_do_is_refused_by_name(client, pretend, path, body, param):
    answer = await client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert (error_of(answer)["type"], error_of(answer)["param"]) == ("BadRequestError", param)
    assert pretend.requests == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{'prompt': 'a'}",
        b'{"prompt": "a",}',
        b'{"prompt": "a"} {}',
        b'["prompt"]',
        b'"prompt"',
        b"null",
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": 1e400}',
        b'{"prompt": "a", "seed": 1' + b"0" * 5000 + b"}",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b"\xff\xfe{\x00}\x00",
        b"[" * 100_000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b'{"a":' + b"[" * 150 + b"]" * 150 + b"}",
        b"\x00",
    ],
    ids=lambda body: repr(body[:40]),
)
async def test_a_body_that_is_no_json_object_is_refused(client, pretend, body):
    for path in (COMPLETIONS, CHAT, "/generate", "/tokenize", "/detokenize"):
        answer = await client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400, answer.text
        assert error_of(answer)["type"] == "Bad Request"
    assert pretend.requests == []


@pytest.mark.parametrize("kind", ["text/plain", "application/xml", "multipart/form-data", "application/jsonp", None])
async def test_another_content_type_is_refused(client, kind):
    headers = {} if kind is None else {"Content-Type": kind}
    answer = await client.post(COMPLETIONS, content=b'{"prompt": "a"}', headers=headers)
    assert answer.status_code == 400
    assert error_of(answer) == {
        "message": "Unsupported Media Type: Only 'application/json' is allowed",
        "type": "Bad Request",
        "param": None,
        "code": 400,
    }


async def test_a_content_type_may_have_parameters(client):
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert (await client.post(COMPLETIONS, content=b'{"prompt": "a"}', headers=headers)).status_code == 200


async def test_harmless_and_unknown_fields_are_accepted(client):
    body = {
        "messages": HI,
        "max_tokens": 2,
        "user": "me",
        "metadata": {"a": "b"},
        "store": True,
        "modalities": ["text"],
        "functions": [],
        "function_call": "none",
        "logit_bias": None,
        "stop": [],
        "service_tier": "auto",
        "nobody_knows_this": {"deep": [1]},
        "watermarking": False,
        "suffix": None,
    }
    assert (await client.post(CHAT, json=body)).status_code == 200
