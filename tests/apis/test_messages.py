"""`/v1/messages` with Anthropic's own client: whole and streamed messages, tools, thinking, formats, errors."""

import asyncio
import json

import anthropic
import pytest
from api_rig import anthropic_client, api_app, in_process
from fake_client import PretendClient
from message_events import checked_stream
from pydantic import BaseModel
from scripted_server import Scripted

from quire.errors import EngineDied
from quire_plugins.reasoning.formats import quire_reasoning_parsers
from quire_plugins.tools import quire_tool_parsers

PARSERS = {parser.name: parser for parser in quire_reasoning_parsers()}
HERMES = next(parser for parser in quire_tool_parsers() if parser.name == "hermes")
ASK = {"model": "tiny", "max_tokens": 1000, "messages": [{"role": "user", "content": "Why?"}]}
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bergen"}}\n</tool_call>'


def app_of(folder, *replies, options=None, **served):
    pretend = Scripted(*replies)
    return api_app(folder, pretend, ["anthropic"], options and {"anthropic": options}, **served), pretend


async def both(client, **asked):
    """The message, whole; and streamed, which must be the same. Events are checked on the way."""
    whole = await client.messages.create(**asked)
    streamed = await checked_stream(client, **asked)
    for message in (whole, streamed):
        message.id = "msg_"
    for one, other in zip(whole.content, streamed.content, strict=True):
        if one.type == "tool_use":
            one.id = other.id = "id"
    assert whole.to_dict(exclude_none=True) == streamed.to_dict(exclude_none=True)
    return whole


async def test_a_message_is_the_same_whole_and_streamed(tmp_path) -> None:
    app, _ = app_of(tmp_path, "Hello, wörld.")
    async with anthropic_client(app) as client:
        message = await both(client, **ASK)
        assert [block.text for block in message.content] == ["Hello, wörld."]
        assert (message.stop_reason, message.stop_sequence, message.model) == ("end_turn", None, "tiny")
        usage = message.usage
        assert (usage.input_tokens, usage.cache_read_input_tokens) == (len("[user]Why?[assistant]") - 3, 3)
        assert usage.output_tokens == len("Hello, wörld.".encode()) + 1
        assert usage.cache_creation_input_tokens == 0


async def test_why_a_message_ended_is_said(tmp_path) -> None:
    app, _ = app_of(tmp_path, "One, two, three")
    async with anthropic_client(app) as client:
        cut = await both(client, **{**ASK, "max_tokens": 4})
        assert (cut.content[0].text, cut.stop_reason) == ("One,", "max_tokens")
        stopped = await both(client, **ASK, stop_sequences=["x", " three"])
        assert (stopped.content[0].text, stopped.stop_reason) == ("One, two,", "stop_sequence")
        assert stopped.stop_sequence == " three"


async def test_an_answer_may_be_longer_than_the_context_and_then_fills_it(tmp_path) -> None:
    pretend = PretendClient(reply="Hello")
    async with anthropic_client(api_app(tmp_path, pretend, ["anthropic"])) as client:
        full = await both(client, **ASK)
        assert full.stop_reason == "model_context_window_exceeded"
        assert full.usage.output_tokens == 128 - len("[user]Why?[assistant]")
        pretend.ends_after = 5
        assert (await both(client, **ASK)).stop_reason == "end_turn"


async def test_no_tokens_only_fill_the_cache(tmp_path) -> None:
    app, pretend = app_of(tmp_path, "One")
    async with anthropic_client(app) as client:
        message = await both(client, **{**ASK, "max_tokens": 0})
    assert (message.content, message.stop_reason, message.usage.output_tokens) == ([], "max_tokens", 0)
    assert pretend.requests[0].params.max_tokens == 1


async def test_sampling_fields_and_those_of_this_server_reach_the_engine(tmp_path) -> None:
    app, pretend = app_of(tmp_path, "One")
    async with anthropic_client(app) as client:
        more = {
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 5,
            "seed": 7,
            "min_p": 0.1,
            "context_management": {"edits": []},
            "service_tier": "auto",
        }
        await both(client, **ASK, metadata={"user_id": "u"}, extra_body=more)
        params = pretend.requests[0].params
        assert (params.temperature, params.top_p, params.top_k, params.seed, params.min_p) == (0.5, 0.9, 5, 7, 0.1)
        for name, value in {"mcp_servers": [{"name": "a"}], "container": "c", "n": 2, "typical_p": 0.5}.items():
            with pytest.raises(anthropic.BadRequestError, match=name):
                await client.messages.create(**ASK, extra_body={name: value})


async def test_a_tool_is_called_and_its_result_goes_back(tmp_path) -> None:
    app, pretend = app_of(tmp_path, f"I look.\n\n{CALL}\n{CALL}", tool_parser=HERMES)
    async with anthropic_client(app) as client:
        message = await both(client, **ASK, tools=[WEATHER])
        text, first, second = message.content
        assert (text.text, message.stop_reason) == ("I look.\n\n", "tool_use")
        assert (first.name, first.input) == (second.name, second.input) == ("get_weather", {"city": "Bergen"})
        assert "1 tools" in pretend.prompt()
        results = [
            {"type": "tool_result", "tool_use_id": "a", "content": "rain"},
            {"type": "tool_result", "tool_use_id": "b", "is_error": True, "content": [{"type": "text", "text": "no"}]},
            {"type": "text", "text": "And?"},
        ]
        answer = {"role": "assistant", "content": [block.to_dict() for block in message.content]}
        turns = [*ASK["messages"], answer, {"role": "user", "content": results}]
        await client.messages.create(model="tiny", max_tokens=5, messages=turns, tools=[WEATHER])
    call = 'get_weather({"city": "Bergen"})'
    asked = pretend.prompt().partition("1 tools")[0]
    assert asked == f"[user]Why?[assistant]I look.\n\n{call}{call}[tool]rain[tool]Error:\nno[user]And?"


@pytest.mark.parametrize(
    ("choice", "constrained", "at_most"),
    [
        ({"type": "auto"}, False, None),
        ({"type": "none"}, False, None),
        ({"type": "any"}, True, None),
        ({"type": "any", "disable_parallel_tool_use": True}, True, 1),
        ({"type": "tool", "name": "get_weather"}, True, 1),
    ],
)
async def test_a_tool_choice_may_demand_calls(tmp_path, choice, constrained, at_most) -> None:
    app, pretend = app_of(tmp_path, CALL, tool_parser=HERMES)
    async with anthropic_client(app) as client:
        message = await both(client, **ASK, tools=[WEATHER], tool_choice=choice)
    spec = pretend.requests[-1].params.structured
    assert (spec is not None) == constrained
    assert spec is None or json.loads(spec.source)["at_most"] == at_most
    assert message.stop_reason == ("end_turn" if choice["type"] == "none" else "tool_use")


async def test_a_call_that_is_cut_has_no_input(tmp_path) -> None:
    app, _ = app_of(tmp_path, CALL, tool_parser=HERMES)
    async with anthropic_client(app) as client:
        message = await client.messages.create(**{**ASK, "max_tokens": len(CALL) - 25}, tools=[WEATHER])
    assert (message.content[0].input, message.stop_reason) == ({}, "max_tokens")


async def test_tools_of_other_kinds_are_known_left_out_or_refused(tmp_path) -> None:
    app, pretend = app_of(tmp_path, "Yes.", tool_parser=HERMES)
    search = {"type": "web_search_20250305", "name": "web_search"}
    async with anthropic_client(app) as client:
        known = [{"type": "bash_20250124", "name": "bash"}, {"type": "text_editor_20250728", "name": "edit"}]
        await client.messages.create(**ASK, tools=[*known, {**WEATHER, "name": "x" * 128, "type": "custom"}, search])
        assert "3 tools" in pretend.prompt()
        for wrong in ([search], [{"type": "computer_toolset_20260801"}], [{"name": "f"}]):
            with pytest.raises(anthropic.BadRequestError, match="tools"):
                await client.messages.create(**ASK, tools=wrong)


@pytest.mark.parametrize("display", ["summarized", "omitted"])
async def test_thinking_is_a_block_that_goes_back_with_the_history(tmp_path, display) -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ m.reasoning_content }}|{{ m.content }}{% endfor %}"
    more = {"template": template, "reasoning_parser": PARSERS["qwen3"]}
    app, pretend = app_of(tmp_path, "<think>hm, é</think>\n\nSo.", **more)
    thinking = {"type": "enabled", "budget_tokens": 2048, "display": display}
    async with anthropic_client(app) as client:
        message = await both(client, **ASK, thinking=thinking)
        thought, text = message.content
        assert (thought.type, thought.thinking) == ("thinking", "" if display == "omitted" else "hm, é")
        assert thought.signature
        assert (text.text, message.stop_reason) == ("So.", "end_turn")
        assert message.usage.output_tokens_details.thinking_tokens > 0
        assert pretend.requests[-1].params.extra["reasoning_limit"]["tokens"] == 2048
        turns = [*ASK["messages"], message.to_param(), {"role": "user", "content": "And?"}]
        await client.messages.create(model="tiny", max_tokens=5, messages=turns)
        assert pretend.prompt().endswith("[assistant]hm, é|So.[user]|And?")
        wrong = {"type": "thinking", "thinking": "", "signature": "quire-thinking:%"}
        turns[1] = {"role": "assistant", "content": [wrong]}
        with pytest.raises(anthropic.BadRequestError, match="signature"):
            await client.messages.create(model="tiny", max_tokens=5, messages=turns)


async def test_thinking_reaches_the_template_and_a_budget_only_a_server_that_has_one(tmp_path) -> None:
    app, pretend = app_of(tmp_path, "So.", template="{{ enable_thinking }} {{ thinking }} {{ reasoning_effort }}")
    async with anthropic_client(app) as client:
        for thinking, shown in (
            ({"type": "enabled", "budget_tokens": 1024}, "True True low"),
            ({"type": "adaptive"}, "True True low"),
            ({"type": "disabled"}, "False False low"),
        ):
            await client.messages.create(**ASK, thinking=thinking, output_config={"effort": "low"})
            assert pretend.prompt() == shown


async def test_an_answer_may_follow_a_schema(tmp_path) -> None:
    class City(BaseModel):
        name: str

    app, pretend = app_of(tmp_path, '{"name": "Bergen"}')
    async with anthropic_client(app) as client:
        message = await client.messages.parse(**ASK, output_format=City)
        assert message.parsed_output == City(name="Bergen")
        assert pretend.requests[-1].params.structured.kind == "json_schema"
        old = {"type": "json_schema", "schema": {"type": "object"}}
        await client.messages.create(**ASK, extra_body={"output_format": old})
        assert json.loads(pretend.requests[-1].params.structured.source) == {"type": "object"}


async def test_system_prompts_are_joined_and_what_changes_in_them_is_left_out(tmp_path) -> None:
    app, pretend = app_of(tmp_path, "Yes.")
    billing = "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch={};"
    blocks = [{"type": "text", "text": text} for text in (billing, "You are Code.", "Be brief.")]
    blocks[2]["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
    async with anthropic_client(app) as client:
        for change, system in enumerate((blocks, f"{billing}\nYou are Code.\n\nBe brief.", blocks)):
            blocks[0]["text"] = billing.format(change)
            await client.messages.create(**ASK, system=system, extra_body={"cache_control": {"type": "ephemeral"}})
        prompts = {pretend.prompt(number) for number in range(3)}
        assert prompts == {"[system]You are Code.\n\nBe brief.[user]Why?[assistant]"}
        turns = [
            {"role": "system", "content": "First."},
            {"role": "user", "content": "One"},
            {"role": "user", "content": [{"type": "text", "text": "two"}]},
            {"role": "system", "content": [{"type": "text", "text": "New."}]},
        ]
        await client.messages.create(model="tiny", max_tokens=5, messages=turns)
    reminder = "<system-reminder>\nNew.\n</system-reminder>"
    assert pretend.prompt() == f"[system]First.[user]One\ntwo\n{reminder}[assistant]"


async def test_an_assistant_turn_at_the_end_is_continued(tmp_path) -> None:
    template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    app, pretend = app_of(tmp_path, " Sol", template=template)
    async with anthropic_client(app) as client:
        turns = [*ASK["messages"], {"role": "assistant", "content": "It is"}]
        message = await both(client, **{**ASK, "messages": turns})
        assert (message.content[0].text, pretend.prompt()) == (" Sol", "[user]Why?[assistant]It is")
        turns[1]["content"] = []
        await client.messages.create(**{**ASK, "messages": turns})
        assert pretend.prompt() == "[user]Why?>"


async def test_documents_and_blocks_of_other_servers_tools_are_read(tmp_path) -> None:
    app, pretend = app_of(tmp_path, "Yes.")
    plain = {"type": "text", "media_type": "text/plain", "data": "D"}
    inner = {"type": "content", "content": [{"type": "text", "text": "E"}]}
    content = [
        {"type": "document", "source": plain, "title": "T"},
        {"type": "document", "source": inner},
        {"type": "search_result", "source": "s", "title": "F", "content": [{"type": "text", "text": "G"}]},
    ]
    use = {"type": "server_tool_use", "id": "a", "name": "web_search", "input": {"query": "q"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "a", "content": []}
    turns = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": [use, found, {"type": "text", "text": "So."}]},
        {"role": "user", "content": "And?"},
    ]
    async with anthropic_client(app) as client:
        await client.messages.create(model="tiny", max_tokens=5, messages=turns)
        said = '[user]T\nD\nE\nF (s)\nG[assistant]web_search({"query": "q"})[tool][][assistant]So.[user]And?[assistant]'
        assert pretend.prompt() == said
        pdf = {"type": "base64", "media_type": "application/pdf", "data": "AA=="}
        file = {"type": "file", "file_id": "f"}
        for block in (
            {"type": "document", "source": pdf},
            {"type": "image", "source": file},
            {"type": "tool_result", "content": "no id"},
            {"type": "tool_result", "tool_use_id": "a", "content": [3]},
            {"type": "text"},
            {"type": "unheard_of"},
        ):
            with pytest.raises(anthropic.BadRequestError, match="messages"):
                await client.messages.create(**{**ASK, "messages": [{"role": "user", "content": [block]}]})


async def test_tokens_are_counted_without_generating(tmp_path) -> None:
    app, pretend = app_of(tmp_path, "Yes.", tool_parser=HERMES)
    async with anthropic_client(app) as client:
        count = await client.messages.count_tokens(model="tiny", messages=ASK["messages"], tools=[WEATHER], system="S")
        assert not pretend.requests
        message = await client.messages.create(**ASK, tools=[WEATHER], system="S")
    assert count.input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens


async def test_other_model_names_are_served_where_the_operator_says_so(tmp_path) -> None:
    unknown = {**ASK, "model": "claude-unheard-of"}
    app, _ = app_of(tmp_path, "Yes.")
    async with anthropic_client(app) as client:
        with pytest.raises(anthropic.NotFoundError, match="claude-unheard-of") as refused:
            await client.messages.create(**unknown)
        assert refused.value.body["error"]["type"] == "not_found_error"
    for fallback in ("tiny", "*"):
        app, _ = app_of(tmp_path, "Yes.", options={"fallback": fallback})
        async with anthropic_client(app) as client:
            assert (await both(client, **unknown)).model == "tiny"
            assert (await client.messages.count_tokens(model="x", messages=ASK["messages"])).input_tokens > 3


async def test_errors_have_the_form_of_the_api(tmp_path) -> None:
    pretend = PretendClient(reply="Hello")
    app = api_app(tmp_path, pretend, ["anthropic"], settings={"api_key": ["secret"]})
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
async def test_a_client_that_disconnects_ends_its_message(tmp_path, stream) -> None:
    pretend = PretendClient(reply="Hello")
    pretend.hold = asyncio.Event()
    app = api_app(tmp_path, pretend, ["anthropic"])
    async with anthropic_client(app) as client:
        asking = asyncio.create_task(client.messages.create(**ASK, stream=stream))
        await pretend.progress.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        while pretend.running:
            await asyncio.sleep(0)
    assert pretend.aborted
