"""`/v1/messages` with Anthropic's own client: messages whole and streamed, why they end, tokens, names, errors."""

import asyncio

import anthropic
import pytest
from api_rig import anthropic_client, api_app, in_process, scripted_messages
from fake_client import PretendClient
from message_events import both

from quire.errors import EngineDied

ASK = {"model": "tiny", "max_tokens": 1000, "messages": [{"role": "user", "content": "Why?"}]}
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokenizer")


async def test_a_message_is_the_same_whole_and_streamed(folder) -> None:
    app, _ = scripted_messages(folder, "Hello, wörld.")
    async with anthropic_client(app) as client:
        message = await both(client, **ASK)
        assert [block.text for block in message.content] == ["Hello, wörld."]
        assert (message.stop_reason, message.stop_sequence, message.model) == ("end_turn", None, "tiny")
        usage = message.usage
        assert (usage.input_tokens, usage.cache_read_input_tokens) == (len("[user]Why?[assistant]") - 3, 3)
        assert usage.output_tokens == len("Hello, wörld.".encode()) + 1
        assert usage.cache_creation_input_tokens == 0


async def test_why_a_message_ended_is_said(folder) -> None:
    app, _ = scripted_messages(folder, "One, two, three")
    async with anthropic_client(app) as client:
        cut = await both(client, **{**ASK, "max_tokens": 4})
        assert (cut.content[0].text, cut.stop_reason) == ("One,", "max_tokens")
        stopped = await both(client, **ASK, stop_sequences=["x", " three"])
        assert (stopped.content[0].text, stopped.stop_reason) == ("One, two,", "stop_sequence")
        assert stopped.stop_sequence == " three"


async def test_an_answer_may_be_longer_than_the_context_and_then_fills_it(folder) -> None:
    pretend = PretendClient(reply="Hello")
    async with anthropic_client(api_app(folder, pretend, ["anthropic"])) as client:
        full = await both(client, **ASK)
        assert full.stop_reason == "model_context_window_exceeded"
        assert full.usage.output_tokens == 128 - len("[user]Why?[assistant]")
        pretend.ends_after = 5
        assert (await both(client, **ASK)).stop_reason == "end_turn"


async def test_no_tokens_only_fill_the_cache(folder) -> None:
    app, pretend = scripted_messages(folder, "One")
    async with anthropic_client(app) as client:
        message = await both(client, **{**ASK, "max_tokens": 0})
    assert (message.content, message.stop_reason, message.usage.output_tokens) == ([], "max_tokens", 0)
    assert pretend.requests[0].params.max_tokens == 1


async def test_sampling_fields_and_those_of_this_server_reach_the_engine(folder) -> None:
    app, pretend = scripted_messages(folder, "One")
    async with anthropic_client(app) as client:
        more = {
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 5,
            "seed": 7,
            "min_p": 0.1,
            "speculative": False,
            "context_management": {"edits": []},
            "service_tier": "auto",
        }
        await both(client, **ASK, metadata={"user_id": "u"}, extra_body=more)
        params = pretend.requests[0].params
        assert (params.temperature, params.top_p, params.top_k, params.seed, params.min_p) == (0.5, 0.9, 5, 7, 0.1)
        assert params.speculative is False
        for name, value in {"mcp_servers": [{"name": "a"}], "container": "c", "n": 2, "typical_p": 0.5}.items():
            with pytest.raises(anthropic.BadRequestError, match=name):
                await client.messages.create(**ASK, extra_body={name: value})


async def test_tokens_are_counted_without_generating(folder) -> None:
    app, pretend = scripted_messages(folder, "Yes.", tools="hermes")
    async with anthropic_client(app) as client:
        count = await client.messages.count_tokens(model="tiny", messages=ASK["messages"], tools=[WEATHER], system="S")
        assert not pretend.requests
        message = await client.messages.create(**ASK, tools=[WEATHER], system="S")
    assert count.input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens


async def test_other_model_names_are_served_where_the_operator_says_so(folder) -> None:
    unknown = {**ASK, "model": "claude-unheard-of"}
    app, _ = scripted_messages(folder, "Yes.")
    async with anthropic_client(app) as client:
        with pytest.raises(anthropic.NotFoundError, match="claude-unheard-of") as refused:
            await client.messages.create(**unknown)
        assert refused.value.body["error"]["type"] == "not_found_error"
    for fallback in ("tiny", "*"):
        app, _ = scripted_messages(folder, "Yes.", fallback=fallback)
        async with anthropic_client(app) as client:
            assert (await both(client, **unknown)).model == "tiny"
            assert (await client.messages.count_tokens(model="x", messages=ASK["messages"])).input_tokens > 3


async def test_errors_have_the_form_of_the_api(folder) -> None:
    pretend = PretendClient(reply="Hello")
    app = api_app(folder, pretend, ["anthropic"], settings={"api_key": ["secret"]})
    async with in_process(app) as http:
        refused = await http.post("/v1/messages", json=ASK, headers={"x-request-id": "r1"})
        error = {"type": "authentication_error", "message": "The API key is missing or wrong."}
        assert (refused.status_code, refused.json()) == (401, {"type": "error", "error": error, "request_id": "r1"})
    async with anthropic_client(app, api_key="secret", default_headers={"anthropic-beta": "a,b"}) as client:
        long = {**ASK, "messages": [{"role": "user", "content": "a" * 200}]}
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long: ") as wrong:
            await client.messages.create(**long)
        assert wrong.value.body["error"]["type"] == "invalid_request_error"
        with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
            await client.messages.create(**{**ASK, "max_tokens": -1})
        pretend.failure = (0, EngineDied("gone"))
        with pytest.raises(anthropic.APIStatusError, match="gone") as died:
            await client.messages.create(**ASK, stream=True)
        assert (died.value.status_code, died.value.body["error"]["type"]) == (503, "overloaded_error")
        pretend.failure = (2, EngineDied("gone"))
        stream = await client.messages.create(**ASK, stream=True)
        with pytest.raises(anthropic.APIStatusError, match="gone") as cut:
            async for _ in stream:
                pass
        assert cut.value.body["error"]["type"] == "overloaded_error"
        assert not pretend.running


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_disconnects_ends_its_message(folder, stream) -> None:
    pretend = PretendClient(reply="Hello")
    pretend.hold = asyncio.Event()
    app = api_app(folder, pretend, ["anthropic"])
    async with anthropic_client(app) as client:
        asking = asyncio.create_task(client.messages.create(**ASK, stream=stream))
        await pretend.progress.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        while pretend.running:
            await asyncio.sleep(0)
    assert pretend.aborted
