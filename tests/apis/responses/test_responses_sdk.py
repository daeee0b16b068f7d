"""The official `openai` package, unmodified: responses whole, streamed, parsed, continued and stored; conversations."""

import json

import openai
import pytest
from pydantic import BaseModel

TOOLS = [{"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}]


class Sum(BaseModel):
    """What a parsed answer holds."""

    value: int


async def test_a_response_is_continued_by_its_id_with_what_was_said(rig):
    rig.says("Hello.", "Fine.", "Bye.")
    async with rig.openai() as client:
        first = await client.responses.create(model="tiny", input="Hi", instructions="Be brief.")
        second = await client.responses.create(model="tiny", input="How?", previous_response_id=first.id)
        third = await client.responses.create(model="tiny", input="So?", previous_response_id=second.id)
        assert (first.output_text, third.output_text) == ("Hello.", "Bye.")
        assert rig.script.prompt(0) == "[system]Be brief.[user]Hi[assistant]"
        assert rig.script.prompt(2) == "[user]Hi[assistant]Hello.[user]How?[assistant]Fine.[user]So?[assistant]"
        assert third.previous_response_id == second.id
        await client.responses.delete(second.id)
        with pytest.raises(openai.BadRequestError, match="is not stored"):
            await client.responses.create(model="tiny", input="So?", previous_response_id=third.id)


async def test_a_tool_call_goes_round(rig, tool_call):
    rig.says(f"I add.{tool_call('add', a=1)}", "It is 3.")
    async with rig.openai() as client:
        first = await client.responses.create(model="tiny", input="1 + 2?", tools=TOOLS)
        call = first.output[-1]
        assert (call.name, json.loads(call.arguments)) == ("add", {"a": 1})
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
        by_id = await client.responses.create(input=[output], tools=TOOLS, previous_response_id=first.id)
        asked = rig.script.prompt()
        items = [{"role": "user", "content": "1 + 2?"}, *(item.model_dump() for item in first.output), output]
        by_items = await client.responses.create(input=items, tools=TOOLS)
        assert by_id.output_text == by_items.output_text == "It is 3."
        assert asked == rig.script.prompt() == '[user]1 + 2?[assistant]I add.add({"a": 1})[tool]31 tools[assistant]'


async def test_the_helpers_for_streams_and_for_parsed_answers_work(rig):
    rig.says('{"value": 3}')
    async with rig.openai() as client:
        parsed = await client.responses.parse(model="tiny", input="1 + 2?", text_format=Sum)
        assert parsed.output_parsed == Sum(value=3)
        assert rig.script.requests[-1].params.structured.kind == "json_schema"
        async with client.responses.stream(model="tiny", input="1 + 2?", text_format=Sum) as stream:
            texts = [event.snapshot async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()
        assert texts[-1] == final.output_text == '{"value": 3}'
        assert final.output_parsed == Sum(value=3)
        assert (await client.responses.retrieve(final.id)).output_text == '{"value": 3}'


async def test_stored_responses_are_retrieved_listed_and_deleted(rig):
    rig.says("Hello.")
    items = [{"role": "user", "content": f"{number}"} for number in range(5)]
    async with rig.openai() as client:
        made = await client.responses.create(model="tiny", input=items, metadata={"a": "b"}, temperature=0)
        assert await client.responses.retrieve(made.id) == made
        pages = [item async for item in client.responses.input_items.list(made.id, limit=2)]
        assert [item.content[0].text for item in pages] == ["4", "3", "2", "1", "0"]
        page = await client.responses.input_items.list(made.id, limit=2, order="asc", after=pages[-1].id)
        assert [item.content[0].text for item in page.data] == ["1", "2"]
        assert page.has_more
        with pytest.raises(openai.BadRequestError, match="after"):
            await client.responses.input_items.list(made.id, after="msg_x")
        with pytest.raises(openai.BadRequestError, match="background"):
            await client.responses.cancel(made.id)
        await client.responses.delete(made.id)
        for ask in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                await ask(made.id)
        unstored = await client.responses.create(model="tiny", input="Hi", store=False)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(unstored.id)


async def test_items_are_named_by_their_ids(rig):
    rig.says("Hello.")
    async with rig.openai() as client:
        made = await client.responses.create(model="tiny", input="Hi")
        asked = [{"type": "item_reference", "id": made.output[-1].id}, {"role": "user", "content": "So?"}]
        await client.responses.create(model="tiny", input=asked)
        assert rig.script.prompt() == "[assistant]Hello.[user]So?[assistant]"
        with pytest.raises(openai.BadRequestError, match="not stored"):
            await client.responses.create(model="tiny", input=[{"id": "msg_none"}])


async def test_a_conversation_gets_what_responses_add(rig):
    rig.says("Hello.", "Fine.")
    async with rig.openai() as client:
        said = [{"role": "user", "content": "I am Ann."}]
        conversation = await client.conversations.create(items=said, metadata={"a": "b"})
        await client.responses.create(model="tiny", input="Hi", conversation=conversation.id)
        made = await client.responses.create(input="How?", conversation={"id": conversation.id}, store=False)
        assert made.conversation.id == conversation.id
        assert rig.script.prompt() == "[user]I am Ann.[user]Hi[assistant]Hello.[user]How?[assistant]"
        items = [item async for item in client.conversations.items.list(conversation.id, limit=2, order="asc")]
        texts = [item.content[0].text for item in items]
        assert texts == ["I am Ann.", "Hi", "Hello.", "How?", "Fine."]
        added = await client.conversations.items.create(conversation.id, items=[{"role": "user", "content": "x"}])
        assert (await client.conversations.items.retrieve(added.data[0].id, conversation_id=conversation.id)).id
        back = await client.conversations.items.delete(added.data[0].id, conversation_id=conversation.id)
        assert back == await client.conversations.retrieve(conversation.id)
        changed = await client.conversations.update(conversation.id, metadata={"c": "d"})
        assert changed.metadata == {"c": "d"}
        with pytest.raises(openai.BadRequestError, match="exclude each other"):
            await client.responses.create(input="x", conversation=conversation.id, previous_response_id="resp_x")
        assert (await client.conversations.delete(conversation.id)).deleted
        for ask in (client.conversations.retrieve, client.conversations.delete):
            with pytest.raises(openai.NotFoundError):
                await ask(conversation.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(input="x", conversation=conversation.id)


async def test_tokens_of_an_input_are_counted(rig):
    async with rig.openai() as client:
        counted = await client.responses.input_tokens.count(model="tiny", input="Hi", instructions="Be brief.")
        rig.says("Hello.")
        made = await client.responses.create(model="tiny", input="Hi", instructions="Be brief.")
    assert counted.input_tokens == made.usage.input_tokens > 10


async def test_the_agents_package_runs_a_tool(rig, tool_call):
    agents = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)
    rig.says(tool_call("add", a=1, b=2), "It is 3.")

    @agents.function_tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    async with rig.openai() as client:
        model = agents.OpenAIResponsesModel("tiny", client)
        agent = agents.Agent("adder", instructions="Add.", tools=[add], model=model)
        whole = await agents.Runner.run(agent, "1 + 2?")
        assert whole.final_output == "It is 3."
        assert "[tool]3" in rig.script.prompt()
        rig.says(tool_call("add", a=1, b=2), "It is 3.")
        streamed = agents.Runner.run_streamed(agent, "1 + 2?")
        kinds = [event.type async for event in streamed.stream_events()]
        assert streamed.final_output == "It is 3."
        assert {"raw_response_event", "run_item_stream_event"} <= set(kinds)
