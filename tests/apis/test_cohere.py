"""Cohere's chat and tokenizer routes with its own client."""

import json

import cohere
import pytest
from api_rig import TOOL_PARSERS, URL, api_app, in_process
from fake_client import PretendClient
from scripted_server import TALK, Scripted

from quire.errors import EngineDied
from quire_plugins.reasoning.formats import quire_reasoning_parsers

QWEN = next(parser for parser in quire_reasoning_parsers() if parser.name == "qwen3")
HERMES = TOOL_PARSERS["hermes"]
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Why?"}]}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bergen"}}\n</tool_call>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokenizer")


def client_of(folder, pretend, **more):
    app = api_app(folder, pretend, ["cohere"], **more)
    return cohere.AsyncClientV2(api_key="none", base_url=URL, httpx_client=in_process(app))


@pytest.fixture(scope="module")
def shared(folder):
    """A client without parsers, and what answers it."""
    pretend = Scripted("")
    return client_of(folder, pretend), pretend


@pytest.fixture
def pretend(shared):
    shared[1].requests.clear()
    shared[1].replies = [b"Hello."]
    return shared[1]


@pytest.fixture
def client(shared):
    return shared[0]


async def both(client, **asked):
    """The answer whole; and streamed, which must add up to the same."""
    whole = await client.chat(**asked)
    events = [event async for event in client.chat_stream(**asked)]
    assert (events[0].type, events[-1].type) == ("message-start", "message-end")
    content, calls, is_open = [], [], False
    for event in events[1:-1]:
        _, what = event.type.rsplit("-", 1)
        assert is_open == (what != "start")
        is_open = what != "end"
        kept = calls if event.type.startswith("tool-call") else content
        message = event.delta.message if what != "end" else None
        if what == "start":
            kept.append((message.tool_calls if kept is calls else message.content).model_dump(exclude_none=True))
        elif event.type == "tool-call-delta":
            kept[-1]["function"]["arguments"] += message.tool_calls.function.arguments
        elif event.type == "content-delta":
            kind = kept[-1]["type"]
            kept[-1][kind] += getattr(message.content, kind)
        assert event.index == len(kept) - 1
    plain = json.loads(whole.json(exclude_none=True))
    for call in (*calls, *plain["message"].get("tool_calls", ())):
        call["id"] = "id"
    assert content == plain["message"].get("content", [])
    assert calls == plain["message"].get("tool_calls", [])
    end = events[-1].delta
    assert (end.finish_reason, end.usage) == (whole.finish_reason, whole.usage)
    return whole


async def test_a_conversation_is_answered_whole_and_in_events(client, pretend) -> None:
    more = {"temperature": 0.5, "k": 5, "p": 0.9, "seed": 7, "citation_options": {"mode": "OFF"}, "safety_mode": "OFF"}
    answer = await both(client, **ASK, **more)
    assert ([part.text for part in answer.message.content], answer.finish_reason) == (["Hello."], "COMPLETE")
    tokens = answer.usage.tokens
    assert (tokens.input_tokens, tokens.output_tokens) == (len("[user]Why?[assistant]"), 7)
    params = pretend.requests[-1].params
    assert (params.temperature, params.top_k, params.top_p, params.seed) == (0.5, 5, 0.9, 7)
    assert (await both(client, **ASK, max_tokens=2)).finish_reason == "MAX_TOKENS"
    assert (await both(client, **ASK, stop_sequences=["lo"])).finish_reason == "STOP_SEQUENCE"


async def test_a_tool_is_called_and_its_result_goes_back(folder) -> None:
    pretend = Scripted(f"I look.{CALL}")
    client = client_of(folder, pretend, tool_parser=HERMES)
    answer = await both(client, **ASK, tools=[WEATHER])
    (call,) = answer.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Bergen"})
    assert answer.finish_reason == "TOOL_CALL"
    result = [{"type": "document", "document": {"data": {"sky": "rain"}}}]
    said = {"role": "assistant", "tool_plan": "I look.", "tool_calls": answer.message.tool_calls}
    turns = [*ASK["messages"], said, {"role": "tool", "tool_call_id": call.id, "content": result}]
    await client.chat(model="tiny", messages=turns, tools=[WEATHER])
    wanted = '[user]Why?[assistant]I look.get_weather({"city": "Bergen"})[tool]{"sky": "rain"}1 tools[assistant]'
    assert pretend.prompt() == wanted
    for choice, demanded in (("REQUIRED", True), ("NONE", False)):
        await client.chat(**ASK, tools=[WEATHER], tool_choice=choice, strict_tools=True)
        assert (pretend.requests[-1].params.structured is not None) == demanded


async def test_thinking_is_content_of_its_own(folder) -> None:
    template = "{% for m in messages %}{{ m.reasoning_content }}|{{ m.content }}{% endfor %}{{ thinking }}"
    pretend = Scripted("<think>hm</think>So.")
    client = client_of(folder, pretend, template=template, reasoning_parser=QWEN)
    answer = await both(client, **ASK, thinking={"type": "enabled", "token_budget": 20})
    assert [part.type for part in answer.message.content] == ["thinking", "text"]
    assert pretend.requests[-1].params.extra["reasoning_limit"]["tokens"] == 20
    turns = [*ASK["messages"], {"role": "assistant", "content": answer.message.content}]
    await client.chat(model="tiny", messages=[*turns, *ASK["messages"]], thinking={"type": "disabled"})
    assert pretend.prompt() == "|Why?hm|So.|Why?False"


async def test_answers_may_follow_a_schema(client, pretend) -> None:
    for form, kind in (
        ({"type": "json_object", "json_schema": PARAMETERS}, "json_schema"),
        ({"type": "json_object"},) * 2,
    ):
        await client.chat(**ASK, response_format=form)
        assert pretend.requests[-1].params.structured.kind == (kind if isinstance(kind, str) else "json_object")


async def test_documents_reach_the_template_or_the_system_prompt(folder, client, pretend) -> None:
    documents = ["One.", {"data": {"title": "T", "text": "Two."}, "id": "b"}]
    await client.chat(**ASK, documents=documents)
    shown = '[system]Use these documents:\n\n{"id": "0", "text": "One."}\n\n{"id": "b", "title": "T", "text": "Two."}'
    assert pretend.prompt() == f"{shown}[user]Why?[assistant]"
    template = "{% for d in documents %}{{ d.id }}:{{ d.text }} {% endfor %}"
    able, knowing = Scripted("Yes."), TALK + template
    await client_of(folder, able, template=knowing).chat(**ASK, documents=documents)
    assert able.prompt() == "[user]Why?[assistant]0:One. b:Two. "


async def test_logprobs_have_ids_of_tokens(client) -> None:
    answer = await client.chat(**ASK, logprobs=True)
    assert [id for entry in answer.logprobs for id in entry.token_ids][:6] == list(b"Hello.")
    assert all(logprob == -0.5 for entry in answer.logprobs for logprob in entry.logprobs)


async def test_texts_become_tokens_and_tokens_texts(shared) -> None:
    http = shared[0]._client_wrapper.httpx_client.httpx_client
    found = (await http.post("/v1/tokenize", json={"text": "ab", "model": "tiny"})).json()
    assert (found["tokens"], found["token_strings"]) == ([97, 98], ["a", "b"])
    assert (await http.post("/v1/detokenize", json={"tokens": [97, 98]})).json()["text"] == "ab"


async def test_errors_are_raised_by_the_client(folder) -> None:
    pretend = PretendClient(reply="Hello")
    client = client_of(folder, pretend)
    with pytest.raises(cohere.NotFoundError) as missing:
        await client.chat(**{**ASK, "model": "unknown"})
    assert "unknown" in missing.value.body["message"]
    with pytest.raises(cohere.BadRequestError, match="image_url"):
        await client.chat(model="tiny", messages=[{"role": "user", "content": [{"type": "image_url"}]}])
    pretend.failure = (2, EngineDied("gone"))
    events = [event async for event in client.chat_stream(**ASK)]
    assert (events[-1].delta.finish_reason, events[-1].delta.error) == ("ERROR", "gone")
    assert not pretend.running
