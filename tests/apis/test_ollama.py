"""Ollama's API with its own client: chat, prompts, embeddings, lists of models, errors."""

import base64
import json
from types import SimpleNamespace

import numpy as np
import ollama
import pytest
from api_rig import TOOL_PARSERS, URL, api_app, in_process
from fake_client import PretendClient, embedder, info
from httpx import ASGITransport
from pydantic import BaseModel
from scripted_server import TALK, Scripted

from quire.errors import EngineDied, NotFound
from quire_apis.ollama.descriptions import shown
from quire_plugins.reasoning.formats import quire_reasoning_parsers

QWEN = next(parser for parser in quire_reasoning_parsers() if parser.name == "qwen3")
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Why?"}]}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bergen"}}\n</tool_call>'
TIMES = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def get_weather(city: str) -> str:
    """The weather of a city."""
    return city


def client_of(app):
    transport = ASGITransport(app=app, raise_app_exceptions=False)
    return ollama.AsyncClient(host=URL, transport=transport)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokenizer")


@pytest.fixture(scope="module")
def plain(folder):
    """An application without parsers, and its scripted client."""
    pretend = Scripted("")
    return api_app(folder, pretend, ["ollama"]), pretend


@pytest.fixture
def pretend(plain):
    plain[1].requests.clear()
    plain[1].replies = [b"Hello."]
    return plain[1]


@pytest.fixture
def client(plain):
    return client_of(plain[0])


async def both(client, **asked):
    """The message whole; and streamed, which must add up to the same."""
    whole = await client.chat(**asked)
    parts = [part async for part in await client.chat(**asked, stream=True)]
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert "".join(part.message.thinking or "" for part in parts) == (whole.message.thinking or "")
    calls = [call.function for part in parts for call in part.message.tool_calls or ()]
    assert calls == [call.function for call in whole.message.tool_calls or ()]
    counts = ("done_reason", "prompt_eval_count", "eval_count", "model")
    assert [getattr(parts[-1], name) for name in counts] == [getattr(whole, name) for name in counts]
    for answer in (whole, parts[-1]):
        total, *shares = (getattr(answer, name) for name in TIMES)
        assert total == sum(shares)
        assert min(shares) > 0
    return whole


async def test_a_conversation_is_answered_whole_and_in_lines(client, pretend) -> None:
    answer = await both(client, **ASK)
    assert (answer.message.content, answer.done_reason) == ("Hello.", "stop")
    assert (answer.prompt_eval_count, answer.eval_count) == (len("[user]Why?[assistant]"), 7)
    options = {"num_predict": 3, "temperature": 0.5, "seed": 7, "repeat_penalty": 1.1, "stop": ["x"], "num_ctx": 512}
    assert (await both(client, **ASK, options=options, keep_alive="5m")).done_reason == "length"
    params = pretend.requests[-1].params
    assert (params.max_tokens, params.temperature, params.seed, params.repetition_penalty) == (3, 0.5, 7, 1.1)
    assert params.stop == ("x",)


async def test_lines_are_the_default_and_times_are_measured(plain, pretend) -> None:
    async with in_process(plain[0]) as http:
        answer = await http.post("/api/chat", json=ASK)
        assert answer.headers["content-type"] == "application/x-ndjson"
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert lines[-1]["done"]
        assert lines[0]["message"] == {"role": "assistant", "content": "H"}
        loaded = await http.post("/api/chat", json={"model": "tiny:latest", "keep_alive": 0})
        assert loaded.json()["done_reason"] == "load"
        loaded = await http.post("/api/generate", json={"model": "tiny"})
        assert (loaded.json()["done_reason"], loaded.json()["response"]) == ("load", "")


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded"])
async def test_only_web_pages_must_say_that_they_send_json(plain, pretend, kind) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    async with in_process(plain[0]) as http:
        answer = await http.post("/api/chat", content=json.dumps({**ASK, "stream": False}), headers=headers)
        assert (answer.status_code, answer.json()["message"]["content"]) == (200, "Hello.")
        of_a_page = await http.post("/api/chat", content=json.dumps(ASK), headers={**headers, "Origin": "http://x"})
        assert (of_a_page.status_code, of_a_page.json()["error"][:22]) == (400, "Unsupported Media Type")


async def test_a_tool_is_called_and_its_result_goes_back(folder) -> None:
    pretend = Scripted(CALL)
    client = client_of(api_app(folder, pretend, ["ollama"], tool_parser=TOOL_PARSERS["hermes"]))
    answer = await both(client, **ASK, tools=[get_weather])
    (call,) = answer.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Bergen"})
    turns = [*ASK["messages"], answer.message, {"role": "tool", "content": "rain", "tool_name": "get_weather"}]
    await client.chat(model="tiny", messages=turns, tools=[get_weather])
    assert pretend.prompt() == '[user]Why?[assistant]get_weather({"city": "Bergen"})[tool]rain1 tools[assistant]'
    assert (await client.show("tiny")).capabilities == ["completion", "tools"]
    cut = await client.chat(**ASK, tools=[get_weather], options={"num_predict": len(CALL) - 25})
    assert (cut.message.tool_calls[0].function.arguments, cut.done_reason) == ({}, "length")


async def test_thinking_is_a_field_of_its_own(folder, client, pretend) -> None:
    template = (
        "{% for m in messages %}{{ m.reasoning_content }}|{% endfor %}{{ enable_thinking }} {{ reasoning_effort }}"
    )
    thinking = Scripted("<think>hm</think>So.")
    able = client_of(api_app(folder, thinking, ["ollama"], template=template, reasoning_parser=QWEN))
    answer = await both(able, **ASK, think=True)
    assert (answer.message.content, answer.message.thinking) == ("So.", "hm")
    assert thinking.prompt() == "|True "
    await able.chat(model="tiny", messages=[*ASK["messages"], answer.message, *ASK["messages"]], think="low")
    assert thinking.prompt() == "|hm||True low"
    await able.generate("tiny", "Why?", think=False)
    assert thinking.prompt() == "|False none"
    with pytest.raises(ollama.ResponseError, match="think"):
        await client.chat(**ASK, think=True)


async def test_answers_may_follow_a_format(client, pretend) -> None:
    class City(BaseModel):
        name: str

    pretend.replies = [b'{"name": "Bergen"}']
    answer = await both(client, **ASK, format=City.model_json_schema())
    assert City.model_validate_json(answer.message.content).name == "Bergen"
    assert pretend.requests[-1].params.structured.kind == "json_schema"
    await client.generate("tiny", "Why?", format="json", raw=True)
    assert pretend.requests[-1].params.structured.kind == "json_object"


async def test_a_prompt_is_asked_or_continued_as_it_is(client, pretend) -> None:
    answer = await client.generate("tiny", "Why?", system="Be brief.")
    assert (answer.response, pretend.prompt()) == ("Hello.", "[system]Be brief.[user]Why?[assistant]")
    parts = [part async for part in await client.generate("tiny", "Why", raw=True, stream=True)]
    assert ("".join(part.response for part in parts), pretend.prompt()) == ("Hello.", "Why")
    assert (parts[-1].prompt_eval_count, parts[-1].eval_count) == (3, 7)
    for wrong in ({"template": "{{ .Prompt }}"}, {"context": [1]}, {"suffix": "x"}, {"raw": True, "images": [b"x"]}):
        with pytest.raises(ollama.ResponseError, match=list(wrong)[-1]) as refused:
            await client.generate("tiny", "Why?", **wrong)
        assert refused.value.status_code == 400


@pytest.mark.parametrize("raw", [False, True])
async def test_logprobs_come_with_the_text(client, raw) -> None:
    answer = await client.generate("tiny", "Why?", raw=raw, logprobs=True, top_logprobs=2)
    assert [entry.token for entry in answer.logprobs[:2]] == ["H", "e"]
    assert [len(entry.top_logprobs) for entry in answer.logprobs[:2]] == [2, 2]


async def test_texts_are_embedded(folder) -> None:
    client = client_of(api_app(folder, PretendClient(embedder()), ["ollama"]))
    answer = await client.embed("embedder", ["one", "a" * 300])
    assert np.allclose(np.linalg.norm(answer.embeddings, axis=1), 1, atol=1e-5)
    assert answer.prompt_eval_count == 3 + 128
    assert answer.total_duration > 0
    assert len((await client.embed("embedder", "one", dimensions=4)).embeddings[0]) == 4
    assert np.allclose((await client.embeddings("embedder", "one")).embedding, answer.embeddings[0])
    assert (await client.embed("embedder", [])).embeddings == []
    for wrong, status in (({"model": "embedder", "truncate": False}, 400), ({"model": "unknown"}, 404)):
        with pytest.raises(ollama.ResponseError) as refused:
            await client.embed(input="a" * 300, **wrong)
        assert refused.value.status_code == status


async def test_models_are_listed_and_described(folder, tmp_path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 30)
    model = info(folder=str(tmp_path), num_parameters=1_230_000_000, sampling_defaults={"top_k": 5})
    client = client_of(api_app(folder, PretendClient(model), ["ollama"]))
    (listed,) = (await client.list()).models
    assert (listed.model, listed.size, listed.details.parameter_size) == ("tiny", 30, "1.2B")
    assert (listed.details.family, listed.details.format) == ("llama", "safetensors")
    (running,) = (await client.ps()).models
    assert (running.model, running.context_length, running.size_vram) == ("tiny", 128, 0)
    for name in ("tiny", "tiny:latest"):
        described = await client.show(name)
        assert described.modelinfo["llama.context_length"] == 128
        assert (described.parameters, described.template) == ("top_k 5", TALK)
    assert (await client.pull("tiny")).status == "success"
    assert [part.status async for part in await client.pull("tiny", stream=True)] == ["success"]
    for ask in (client.pull, client.show):
        with pytest.raises(ollama.ResponseError) as refused:
            await ask("unknown")
        assert refused.value.status_code == 404


async def test_pictures_are_sent_to_the_model(client) -> None:
    data = base64.b64encode(b"not a picture").decode()
    turn = {"role": "user", "content": "What?", "images": [data]}
    with pytest.raises(ollama.ResponseError, match="takes text only"):
        await client.chat(model="tiny", messages=[turn])


async def test_errors_are_a_sentence(folder) -> None:
    pretend = PretendClient(reply="Hello")
    app = api_app(folder, pretend, ["ollama"], settings={"api_key": ["secret"]})
    async with in_process(app) as http:
        assert (await http.get("/api/version")).json() == {"error": "The API key is missing or wrong."}
        http.headers["authorization"] = "Bearer secret"
        assert tuple((await http.get("/api/version")).json()) == ("version",)
        missing = await http.post("/api/chat", json={**ASK, "model": "unknown"})
        assert (missing.status_code, list(missing.json())) == (404, ["error"])
        pretend.failure = (2, EngineDied("gone"))
        lines = (await http.post("/api/chat", json=ASK)).text.splitlines()
        assert json.loads(lines[-1]) == {"error": "gone"}
    assert not pretend.running


def test_an_adapter_that_was_unloaded_while_it_was_described_is_unknown() -> None:
    context = SimpleNamespace(models=lambda: (info(),), adapters=lambda: ())
    with pytest.raises(NotFound, match="'style' does not exist"):
        shown(context, "style", None)
