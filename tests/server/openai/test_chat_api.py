"""`/v1/chat/completions`: shapes of answers and streams, templates, tool calls."""

import json
from dataclasses import replace

import pytest
from fake_client import PretendClient, http, pretend_app
from live_server import chunks_of

from quire.hooks.call_stats import PluginCallStats
from quire.records import Registry, ToolCall, ToolParser
from quire.settings.server_config import ServerConfig
from quire.text.chat.template_pool import TemplatePool

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def pretend():
    return PretendClient()


@pytest.fixture
async def client(tmp_path, pretend):
    async with http(pretend_app(tmp_path, pretend)) as client:
        yield client


async def chat(client, status=200, **body):
    answer = await client.post("/v1/chat/completions", json={"messages": HI, "max_tokens": 4, **body})
    assert answer.status_code == status, answer.text
    if status != 200:
        return answer.json()["error"]
    return [json.loads(event) for event in chunks_of(answer.text)] if body.get("stream") else answer.json()


async def test_an_answer_has_the_shape_clients_expect(client, pretend):
    answer = await chat(client)
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    (choice,) = answer["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "Hell",
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    assert (choice["index"], choice["finish_reason"], choice["stop_reason"], choice["logprobs"]) == (
        0,
        "length",
        None,
        None,
    )
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
    assert pretend.requests[0].prompt.token_ids == (258, 104, 105, 256, 259)


async def test_a_stream_begins_with_the_role_and_ends_with_the_reason(client):
    chunks = await chat(client, stream=True)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == "Hell"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["length"]


async def test_every_choice_of_a_stream_has_its_own_beginning_and_end(client):
    texts, roles, ends = {}, [], []
    for chunk in await chat(client, stream=True, n=2, stream_options={"include_usage": True}):
        for choice in chunk["choices"]:
            index = choice["index"]
            texts[index] = texts.get(index, "") + choice["delta"].get("content", "")
            roles += [index] if "role" in choice["delta"] else []
            ends += [index] if choice["finish_reason"] else []
    assert texts == {0: "Hell", 1: "ello"}
    assert (roles, ends) == ([0, 1], [0, 1])
    assert chunk["usage"] == {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}


async def test_without_max_tokens_the_rest_of_the_context_is_there(client, pretend):
    await chat(client, max_tokens=None, stop="world")
    assert pretend.requests[0].params.max_tokens == 128 - 5
    await chat(client, max_completion_tokens=2)
    assert pretend.requests[1].params.max_tokens == 2


async def test_more_tokens_than_fit_are_refused_not_cut(client, pretend):
    for name in ("max_tokens", "max_completion_tokens"):
        error = await chat(client, 400, **{"max_tokens": None, name: 124})
        assert "is too large: 124" in error["message"]
    assert not pretend.requests


async def test_logprobs_come_with_bytes_and_alternatives(client):
    answer = await chat(client, max_tokens=1, logprobs=True, top_logprobs=2)
    (entry,) = answer["choices"][0]["logprobs"]["content"]
    top = [{"token": "H", "logprob": -0.5, "bytes": [72]}, {"token": "I", "logprob": -1.5, "bytes": [73]}]
    assert entry == {**top[0], "top_logprobs": top}
    chunks = await chat(client, max_tokens=1, logprobs=True, stream=True)
    assert chunks[1]["choices"][0]["logprobs"]["content"] == [{**top[0], "top_logprobs": []}]
    assert (await chat(client, 400, top_logprobs=2))["param"] == "top_logprobs"


async def test_half_a_character_is_never_sent(tmp_path):
    async with http(pretend_app(tmp_path, PretendClient(reply="é漢🙂"))) as client:
        chunks = await chat(client, stream=True, max_tokens=9)
        pieces = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
        assert "".join(pieces) == "é漢🙂"
        assert not any("�" in piece for piece in pieces)
        answer = await chat(client, max_tokens=2, logprobs=True)
    assert [entry["bytes"] for entry in answer["choices"][0]["logprobs"]["content"]] == [[0xC3], [0xA9]]


async def test_content_may_be_a_list_of_text_parts(client, pretend):
    parts = [{"type": "text", "text": "h"}, {"type": "input_text", "text": "i"}]
    await chat(client, messages=[{"role": "user", "content": parts}])
    assert pretend.requests[0].prompt.token_ids == (258, *b"h\ni", 256, 259)
    error = await chat(client, 400, messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])
    assert "text only" in error["message"]


async def test_a_final_message_can_be_continued_and_echoed(client, pretend):
    messages = [*HI, {"role": "assistant", "content": "He"}]
    more = {"messages": messages, "add_generation_prompt": False, "continue_final_message": True, "echo": True}
    answer = await chat(client, **more)
    assert pretend.requests[0].prompt.token_ids == (258, 104, 105, 256, 259, 72, 101)
    assert answer["choices"][0]["message"]["content"] == "HeHell"
    chunks = await chat(client, stream=True, **more)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "He"}
    error = await chat(client, 400, messages=messages, continue_final_message=True)
    assert error["param"] == "continue_final_message"


async def test_a_template_in_a_request_needs_trust(tmp_path, client):
    template = {"chat_template": "{{ messages[0]['content'] }}{{ mark }}", "chat_template_kwargs": {"mark": "!"}}
    error = await chat(client, 400, **template)
    assert (error["param"], "--trust-request-chat-template" in error["message"]) == ("chat_template", True)
    pretend = PretendClient()
    app = pretend_app(tmp_path, pretend, config=ServerConfig(trust_request_chat_template=True))
    async with http(app) as trusting:
        answer = await chat(trusting, return_prompt_text=True, **template)
        assert (await chat(trusting, 400, chat_template="{{ nothing["))["type"] == "BadRequestError"
        error = await chat(trusting, 400, chat_template="{{ raise_exception('not like this') }}")
    assert answer["prompt_text"] == "hi!"
    assert "not like this" in error["message"]


async def test_a_template_that_loops_or_breaks_out_is_stopped(tmp_path):
    config = ServerConfig(trust_request_chat_template=True)
    app = pretend_app(tmp_path, config=config, renderer=TemplatePool(timeout_s=2))
    loop = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"
    escape = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    async with http(app) as client:
        for template in (loop, escape):
            assert (await chat(client, 400, chat_template=template))["code"] == 400


async def test_a_model_without_a_template_says_what_to_do(tmp_path):
    async with http(pretend_app(tmp_path, template=None)) as client:
        assert "--chat-template" in (await chat(client, 400))["message"]


async def test_token_ids_and_prompt_logprobs_come_when_asked_for(client):
    answer = await chat(client, return_token_ids=True, prompt_logprobs=0, max_tokens=2)
    assert answer["prompt_token_ids"] == [258, 104, 105, 256, 259]
    assert answer["choices"][0]["token_ids"] == [72, 101]
    assert answer["prompt_logprobs"][0] is None
    assert len(answer["prompt_logprobs"]) == 5
    chunks = await chat(client, return_token_ids=True, max_tokens=2, stream=True)
    assert chunks[0]["prompt_token_ids"] == [258, 104, 105, 256, 259]


# --- tools ---------------------------------------------------------------------------------------

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
SAYS = 'Sure. [call]{"name": "add", "arguments": {"a": 1}}[/call][call]{"name": "add", "arguments": {}}[/call]'


def _parse(text, tools):
    call = json.loads(text)
    return [ToolCall(call["name"], json.dumps(call["arguments"]))]


PARSER = ToolParser("square", "[call]", "[/call]", _parse, lambda template: False)
WITH_TOOLS = {"tools": TOOLS, "max_tokens": len(SAYS) + 1}


@pytest.fixture
async def tooled(tmp_path):
    config = ServerConfig(enable_auto_tool_choice=True)
    registry = Registry(records={"quire_tool_parsers": {"square": PARSER}})
    pretend = PretendClient(reply=SAYS, ends_after=len(SAYS))
    async with http(pretend_app(tmp_path, pretend, config=config, registry=registry, tool_parser=PARSER)) as client:
        yield client


async def test_calls_in_the_text_become_tool_calls(tooled):
    (choice,) = (await chat(tooled, **WITH_TOOLS))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"].strip() == "Sure."
    calls = choice["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [
        {"name": "add", "arguments": '{"a": 1}'},
        {"name": "add", "arguments": "{}"},
    ]
    assert all(call["id"].startswith("chatcmpl-tool-") for call in calls)
    (choice,) = (await chat(tooled, parallel_tool_calls=False, **WITH_TOOLS))["choices"]
    assert len(choice["message"]["tool_calls"]) == 1


async def test_a_parser_that_raises_fails_its_request_only_and_is_counted(tmp_path):
    def broken(text, tools):
        raise KeyError("a bug of the plugin")

    parser, counter = replace(PARSER, parse=broken), PluginCallStats()
    registry = Registry(
        records={"quire_tool_parsers": {"square": parser}},
        origin={("quire_tool_parsers", "square"): "squares"},
        counter=counter,
    )
    config = ServerConfig(enable_auto_tool_choice=True)
    pretend = PretendClient(reply=SAYS, ends_after=len(SAYS))
    async with http(pretend_app(tmp_path, pretend, config=config, registry=registry, tool_parser=parser)) as client:
        body = {"messages": HI, **WITH_TOOLS}
        reply = await client.post("/v1/chat/completions", json=body)
        assert reply.status_code == 500
        assert "Plugin 'squares' failed: KeyError" in reply.json()["error"]["message"]
        without = await client.post("/v1/chat/completions", json={"messages": HI, "max_tokens": 3})
        assert without.status_code == 200
    assert [(row["plugin"], row["errors"]) for row in counter.snapshot()] == [("squares", 1)]


async def test_calls_stream_as_deltas(tooled):
    chunks = await chat(tooled, stream=True, **WITH_TOOLS)
    content, calls, finish = "", {}, None
    for chunk in chunks:
        (choice,) = chunk["choices"]
        content += choice["delta"].get("content") or ""
        finish = choice["finish_reason"] or finish
        for part in choice["delta"].get("tool_calls", ()):
            call = calls.setdefault(part["index"], {"name": None, "arguments": ""})
            call["name"] = part["function"].get("name", call["name"])
            call["arguments"] += part["function"].get("arguments", "")
    assert content.strip() == "Sure."
    assert calls == {0: {"name": "add", "arguments": '{"a": 1}'}, 1: {"name": "add", "arguments": "{}"}}
    assert finish == "tool_calls"


async def test_tools_that_may_not_be_called_leave_the_text_alone(tooled):
    (choice,) = (await chat(tooled, tool_choice="none", **WITH_TOOLS))["choices"]
    assert choice["message"]["content"] == SAYS
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": []}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "sub"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
    ],
)
async def test_what_cannot_be_asked_of_tools_is_refused(tooled, body, param):
    assert (await chat(tooled, 400, **body))["param"] == param


async def test_auto_tool_choice_must_be_enabled(client):
    error = await chat(client, 400, tools=TOOLS)
    assert error["message"] == '"auto" tool choice requires --enable-auto-tool-choice to be set'
