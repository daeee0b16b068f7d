"""What conversations and answers of `/v1/messages` may have: tools, thinking, schemas, system prompts, documents."""

import json

import anthropic
import pytest
from api_rig import anthropic_client, scripted_messages
from message_events import both
from pydantic import BaseModel

ASK = {"model": "tiny", "max_tokens": 1000, "messages": [{"role": "user", "content": "Why?"}]}
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bergen"}}\n</tool_call>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokenizer")


async def test_a_tool_is_called_and_its_result_goes_back(folder) -> None:
    app, pretend = scripted_messages(folder, f"I look.\n\n{CALL}\n{CALL}", tools="hermes")
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
async def test_a_tool_choice_may_demand_calls(folder, choice, constrained, at_most) -> None:
    app, pretend = scripted_messages(folder, CALL, tools="hermes")
    async with anthropic_client(app) as client:
        message = await both(client, **ASK, tools=[WEATHER], tool_choice=choice)
    spec = pretend.requests[-1].params.structured
    assert (spec is not None) == constrained
    assert spec is None or json.loads(spec.source)["at_most"] == at_most
    assert message.stop_reason == ("end_turn" if choice["type"] == "none" else "tool_use")


async def test_a_call_that_is_cut_has_no_input(folder) -> None:
    app, _ = scripted_messages(folder, CALL, tools="hermes")
    async with anthropic_client(app) as client:
        message = await client.messages.create(**{**ASK, "max_tokens": len(CALL) - 25}, tools=[WEATHER])
    assert (message.content[0].input, message.stop_reason) == ({}, "max_tokens")


async def test_tools_of_other_kinds_are_known_left_out_or_refused(folder) -> None:
    app, pretend = scripted_messages(folder, "Yes.", tools="hermes")
    search = {"type": "web_search_20250305", "name": "web_search"}
    async with anthropic_client(app) as client:
        known = [{"type": "bash_20250124", "name": "bash"}, {"type": "text_editor_20250728", "name": "edit"}]
        await client.messages.create(**ASK, tools=[*known, {**WEATHER, "name": "x" * 128, "type": "custom"}, search])
        assert "3 tools" in pretend.prompt()
        for wrong in ([search], [{"type": "computer_toolset_20260801"}], [{"name": "f"}]):
            with pytest.raises(anthropic.BadRequestError, match="tools"):
                await client.messages.create(**ASK, tools=wrong)


@pytest.mark.parametrize("display", ["summarized", "omitted"])
async def test_thinking_is_a_block_that_goes_back_with_the_history(folder, display) -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ m.reasoning_content }}|{{ m.content }}{% endfor %}"
    app, pretend = scripted_messages(folder, "<think>hm, é</think>\n\nSo.", template=template, reasoning="qwen3")
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


async def test_thinking_reaches_the_template_and_a_budget_only_a_server_that_has_one(folder) -> None:
    app, pretend = scripted_messages(
        folder, "So.", template="{{ enable_thinking }} {{ thinking }} {{ reasoning_effort }}"
    )
    async with anthropic_client(app) as client:
        for thinking, shown in (
            ({"type": "enabled", "budget_tokens": 1024}, "True True low"),
            ({"type": "adaptive"}, "True True low"),
            ({"type": "disabled"}, "False False low"),
        ):
            await client.messages.create(**ASK, thinking=thinking, output_config={"effort": "low"})
            assert pretend.prompt() == shown


async def test_an_answer_may_follow_a_schema(folder) -> None:
    class City(BaseModel):
        name: str

    app, pretend = scripted_messages(folder, '{"name": "Bergen"}')
    async with anthropic_client(app) as client:
        message = await client.messages.parse(**ASK, output_format=City)
        assert message.parsed_output == City(name="Bergen")
        assert pretend.requests[-1].params.structured.kind == "json_schema"
        old = {"type": "json_schema", "schema": {"type": "object"}}
        await client.messages.create(**ASK, extra_body={"output_format": old})
        assert json.loads(pretend.requests[-1].params.structured.source) == {"type": "object"}


async def test_system_prompts_are_joined_and_what_changes_in_them_is_left_out(folder) -> None:
    app, pretend = scripted_messages(folder, "Yes.")
    billing = "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch={};"
    blocks = [{"type": "text", "text": text} for text in (billing, "You are Code.", "Be brief.")]
    blocks[2]["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
    async with anthropic_client(app) as client:
        for change, system in enumerate((blocks, f"{billing}\nYou are Code.\n\nBe brief.", blocks)):
            blocks[0]["text"] = billing.format(change)
            await client.messages.create(**ASK, system=system, extra_body={"cache_control": {"type": "ephemeral"}})
        assert [request.cache_ttl for request in pretend.requests] == [3600.0, 300.0, 3600.0]
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


async def test_an_assistant_turn_at_the_end_is_continued(folder) -> None:
    template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    app, pretend = scripted_messages(folder, " Sol", template=template)
    async with anthropic_client(app) as client:
        turns = [*ASK["messages"], {"role": "assistant", "content": "It is"}]
        message = await both(client, **{**ASK, "messages": turns})
        assert (message.content[0].text, pretend.prompt()) == (" Sol", "[user]Why?[assistant]It is")
        turns[1]["content"] = []
        await client.messages.create(**{**ASK, "messages": turns})
        assert pretend.prompt() == "[user]Why?>"


async def test_documents_and_blocks_of_other_servers_tools_are_read(folder) -> None:
    app, pretend = scripted_messages(folder, "Yes.")
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


async def test_a_conversation_of_empty_messages_is_refused(folder) -> None:
    app, _ = scripted_messages(folder, "x")
    async with anthropic_client(app) as client:
        with pytest.raises(anthropic.BadRequestError, match="needs a message with content"):
            await client.messages.count_tokens(model="tiny", messages=[{"role": "user", "content": []}])
