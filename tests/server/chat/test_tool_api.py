"""Tool calls over HTTP with the `openai` client: calls on demand, and hostile tools."""

import json

import openai
import pytest
from pydantic import BaseModel
from scripted_server import Scripted, streamed, talking
from tool_calls import ASK, BASE, HOST, PARSERS, written
from tool_texts import ADD, CALLS, SERIES, TOOLS

from quire.records import Registry


async def test_parallel_calls_can_be_switched_off(tmp_path) -> None:
    async with talking(tmp_path, Scripted(SERIES["hermes"]), tool_parser=PARSERS["hermes"]) as client:
        asked = {**BASE, "messages": [ASK], "parallel_tool_calls": False}
        (choice,) = (await client.chat.completions.create(**asked)).choices
        assert [call.function.name for call in choice.message.tool_calls] == ["add"]
        _, _, made, _, usage = await streamed(client, **asked)
        assert [call["name"] for call in made] == ["add"]
        assert usage.completion_tokens == len(SERIES["hermes"].encode()) + 1


@pytest.mark.parametrize("name", [*PARSERS, None])
async def test_demanded_calls_are_constrained_in_the_models_own_frame(tmp_path, name) -> None:
    parser = PARSERS[name] if name else None
    text = written(name) if parser and parser.call_format else HOST
    pretend = Scripted(text)
    settings = {"enable_auto_tool_choice": False}
    async with talking(tmp_path, pretend, tool_parser=parser, settings=settings) as client:
        asked = {**BASE, "messages": [ASK], "tool_choice": "required"}
        (choice,) = (await client.chat.completions.create(**asked)).choices
        content, _, calls, finish, _ = await streamed(client, **asked)
    assert (choice.finish_reason, choice.message.content) == (finish, content or None) == ("tool_calls", None)
    made = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert made == [(call["name"], call["arguments"]) for call in calls] == [(c.name, c.arguments) for c in CALLS]
    structured = pretend.requests[0].params.structured
    source = json.loads(structured.source)
    assert (structured.kind, structured.after, source["at_least"], source["at_most"]) == ("calls", None, 1, None)
    whole = source["separator"].join(
        tag["begin"] + call.arguments + tag["end"] for tag, call in zip(source["tags"], CALLS, strict=True)
    )
    assert source["first"] + whole + source["last"] == text
    assert [tag["schema"] for tag in source["tags"]] == [tool["function"]["parameters"] for tool in TOOLS]


async def test_a_named_tool_is_called_once_and_the_answer_stops(tmp_path) -> None:
    pretend = Scripted(written("granite", CALLS[1:]))
    async with talking(tmp_path, pretend, tool_parser=PARSERS["granite"]) as client:
        choice = {"type": "function", "function": {"name": "look"}}
        asked = {**BASE, "messages": [ASK], "tool_choice": choice}
        (answer,) = (await client.chat.completions.create(**asked)).choices
        _, _, calls, finish, _ = await streamed(client, **asked)
    assert (answer.finish_reason, finish) == ("stop", "stop")
    assert [call.function.name for call in answer.message.tool_calls] == [call["name"] for call in calls] == ["look"]
    source = json.loads(pretend.requests[0].params.structured.source)
    (tag,) = source.pop("tags")
    assert source == {"at_least": 1, "at_most": 1}
    assert tag["begin"] + CALLS[1].arguments + tag["end"] == written("granite", CALLS[1:])


async def test_demanded_calls_that_break_off_are_given_as_far_as_they_came(tmp_path) -> None:
    text = written("hermes")
    async with talking(tmp_path, Scripted(text), tool_parser=PARSERS["hermes"]) as client:
        asked = {**BASE, "messages": [ASK], "tool_choice": "required", "max_tokens": len(text.encode()) * 3 // 4}
        (choice,) = (await client.chat.completions.create(**asked)).choices
        _, _, calls, finish, _ = await streamed(client, **asked)
    assert (choice.finish_reason, finish) == ("length", "length")
    made = [call.function.arguments for call in choice.message.tool_calls]
    assert made == [call["arguments"] for call in calls]
    assert CALLS[1].arguments.startswith(made[1])


async def test_a_tool_without_parameters_is_called_with_none(tmp_path) -> None:
    pretend = Scripted('[{"name": "now", "arguments": {}}]')
    async with talking(tmp_path, pretend) as client:
        tools = [{"type": "function", "function": {"name": "now"}}]
        asked = {"model": "tiny", "messages": [ASK], "tools": tools, "tool_choice": "required"}
        (choice,) = (await client.chat.completions.create(**asked)).choices
    assert choice.message.tool_calls[0].function.arguments == "{}"
    (tag,) = json.loads(pretend.requests[0].params.structured.source)["tags"]
    assert tag["schema"] == {"type": "object", "properties": {}, "additionalProperties": False}


async def test_tools_that_may_not_be_called_can_be_kept_out_of_the_prompt(tmp_path) -> None:
    for exclude, said in ((False, "2 tools"), (True, "[assistant]")):
        pretend = Scripted(SERIES["hermes"])
        settings = {"exclude_tools_when_tool_choice_none": exclude}
        async with talking(tmp_path, pretend, tool_parser=PARSERS["hermes"], settings=settings) as client:
            answer = await client.chat.completions.create(**BASE, messages=[ASK], tool_choice="none")
        assert answer.choices[0].message.content == SERIES["hermes"]
        assert said in pretend.prompt()
        assert ("2 tools" in pretend.prompt()) != exclude


# --- what is refused -------------------------------------------------------------------------------


def tool(name="f", **more):
    return {"type": "function", "function": {"name": name, **more}}


def deep(levels):
    schema: dict = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


SPACES = ["", " ", "a b", "f\n", "\0"]


ODD_NAMES = [*SPACES, 'x"}\n<tool_call>', "é", "🙂", "名", "a" * 129, "f.*", "a|b", "f(", "\\d", "{{ 1 }}"]


@pytest.mark.parametrize("name", [*PARSERS, None])
async def test_names_of_odd_characters_are_refused_in_every_format(tmp_path, name) -> None:
    async with talking(tmp_path, Scripted("Yes."), tool_parser=PARSERS[name] if name else None) as client:
        for odd in ODD_NAMES:
            for choice in ("auto", "required", "none", {"type": "function", "function": {"name": odd}}):
                with pytest.raises(openai.BadRequestError) as refused:
                    asked = {"tools": [tool(), tool(odd)], "tool_choice": choice}
                    await client.chat.completions.create(model="tiny", messages=[ASK], **asked)
                assert refused.value.type == "BadRequestError"
                assert "is not a function name: use 1 to 128 letters" in refused.value.message
        answer = await client.chat.completions.create(model="tiny", messages=[ASK])
    assert answer.choices[0].message.content == "Yes."


async def test_the_type_of_parameters_may_be_a_list_of_one(tmp_path) -> None:
    text = '<tool_call>\n{"name": "look", "arguments": {"a": true}}\n</tool_call>'
    parameters = {"type": ["object"], "properties": {"a": {"type": "boolean"}}}
    async with talking(tmp_path, Scripted(text), tool_parser=PARSERS["hermes"]) as client:
        answer = await client.chat.completions.create(
            model="tiny", messages=[ASK], tools=[tool("look", parameters=parameters)], tool_choice="required"
        )
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("look", '{"a": true}')


@pytest.mark.parametrize(
    ("tools", "choice", "said"),
    [
        ([tool(parameters={"type": "array"})], "required", "type object"),
        ([tool(parameters={"type": ["object", "null"]})], "required", "type object"),
        ([tool(parameters=[1])], "auto", "parameters"),
        ([tool(str(i)) for i in range(1025)], "auto", "1024"),
        ([tool(parameters=deep(99))], "required", "nested"),
        ([tool(parameters={"type": "object", "description": "x" * 10_000_000})], "required", "characters"),
        ([tool(str(i), parameters=deep(20)) for i in range(1000)], "required", "characters"),
    ],
)
async def test_hostile_tools_are_refused_and_the_server_lives(tmp_path, tools, choice, said) -> None:
    async with talking(tmp_path, Scripted("Yes."), tool_parser=PARSERS["hermes"]) as client:
        with pytest.raises(openai.BadRequestError, match=said):
            await client.chat.completions.create(model="tiny", messages=[ASK], tools=tools, tool_choice=choice)
        answer = await client.chat.completions.create(model="tiny", messages=[ASK])
    assert answer.choices[0].message.content == "Yes."


async def test_the_old_fields_for_functions_are_refused_with_the_new_ones_named(tmp_path) -> None:
    async with talking(tmp_path, Scripted("Yes."), tool_parser=PARSERS["hermes"]) as client:
        for field, value, instead in (
            ("functions", [TOOLS[0]["function"]], "tools"),
            ("function_call", "auto", "tool_choice"),
            ("function_call", {"name": "add"}, "tool_choice"),
        ):
            with pytest.raises(openai.BadRequestError, match=f"use `{instead}`") as refused:
                await client.chat.completions.create(model="tiny", messages=[ASK], extra_body={field: value})
            assert refused.value.param == field
        nothing = {"functions": [], "function_call": "none"}
        answer = await client.chat.completions.create(model="tiny", messages=[ASK], extra_body=nothing)
    assert (answer.choices[0].message.content, answer.choices[0].message.function_call) == ("Yes.", None)


async def test_a_thousand_tools_are_taken(tmp_path) -> None:
    pretend = Scripted("Yes.")
    async with talking(tmp_path, pretend, tool_parser=PARSERS["hermes"]) as client:
        tools = [tool(f"f{i}", parameters=deep(3)) for i in range(1000)]
        answer = await client.chat.completions.create(model="tiny", messages=[ASK], tools=tools)
    assert answer.choices[0].message.content == "Yes."
    assert "1000 tools" in pretend.prompt()


async def test_demanded_calls_need_a_back_end_and_exclude_another_form(tmp_path) -> None:
    asked = {**BASE, "messages": [ASK], "tool_choice": "required"}
    async with talking(tmp_path, Scripted("x"), registry=Registry()) as client:
        with pytest.raises(openai.BadRequestError, match="no loaded plugin can constrain output to calls"):
            await client.chat.completions.create(**asked)
    async with talking(tmp_path, Scripted("x")) as client:
        with pytest.raises(openai.BadRequestError, match="exclude each other"):
            await client.chat.completions.create(**asked, extra_body={"structured_outputs": {"json_object": True}})


async def test_a_prompt_that_tools_make_too_long_is_refused(tmp_path) -> None:
    async with talking(tmp_path, Scripted("Yes."), template="{{ tools | tojson }}") as client:
        with pytest.raises(openai.BadRequestError, match="characters"):
            await client.chat.completions.create(
                model="tiny", messages=[ASK], tools=[tool(description="x" * 10_000_000)], tool_choice="none"
            )


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_tools_and_a_form_of_the_answer_go_together(tmp_path, choice) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": {"type": "object", "title": "answer"}}}
    call = written("llama3_json", CALLS[:1])
    pretend = Scripted(call, '{"name": "x"}' if choice == "auto" else call)
    async with talking(tmp_path, pretend, tool_parser=PARSERS["llama3_json"]) as client:
        asked = {**BASE, "messages": [ASK], "response_format": form, "tool_choice": choice}
        first = (await client.chat.completions.create(**asked)).choices[0]
        second = (await client.chat.completions.create(**asked)).choices[0]
    assert [made.function.name for made in first.message.tool_calls] == ["add"]
    structured = pretend.requests[0].params.structured
    tags = json.loads(structured.source)["tags"]
    assert structured.kind == "calls"
    if choice == "auto":  # one call, or an answer of the form
        assert second.message.content == '{"name": "x"}'
        whose = {"owner": "`response_format`", "param": "response_format"}
        assert tags[2:] == [{"begin": "", "schema": {"type": "object", "title": "answer"}, "end": "", **whose}]
        assert [tag["param"] for tag in tags[:2]] == [f"tools[{i}].function.parameters" for i in (0, 1)]
        assert json.loads(structured.source)["at_most"] == 1
    else:
        assert len(tags) == 2


async def test_calls_of_strict_tools_are_held_to_their_schemas(tmp_path) -> None:
    strict = [{**TOOLS[0], "function": {**TOOLS[0]["function"], "strict": True}}, TOOLS[1]]
    for name, expected in (("hermes", True), ("deepseek_v31", True), ("llama3_json", False), ("pythonic", False)):
        pretend = Scripted(SERIES[name])
        async with talking(tmp_path, pretend, tool_parser=PARSERS[name]) as client:
            for tools in (TOOLS, strict):
                answer = await client.chat.completions.create(model="tiny", messages=[ASK], tools=tools)
                assert len(answer.choices[0].message.tool_calls) == 2
        free, held = (request.params.structured for request in pretend.requests)
        assert free is None
        assert (held is not None) == expected
        if held is not None:
            source = json.loads(held.source)
            assert (held.kind, source["triggers"]) == ("structural_tag", [PARSERS[name].start])
            schemas = [tag["schema"] for tag in source["structures"]]
            assert schemas == [TOOLS[0]["function"]["parameters"], {"type": "object"}]


async def test_the_clients_parser_gives_objects(tmp_path) -> None:
    class Step(BaseModel):
        name: str
        costs: list[int]

    class Add(BaseModel):
        a: int
        note: str

    pretend = Scripted('{"name": "dig", "costs": [1, 2]}', written("hermes", CALLS[:1]))
    async with talking(tmp_path, pretend, tool_parser=PARSERS["hermes"]) as client:
        answer = await client.chat.completions.parse(model="tiny", messages=[ASK], response_format=Step)
        assert answer.choices[0].message.parsed == Step(name="dig", costs=[1, 2])
        assert answer.choices[0].message.refusal is None
        add = openai.pydantic_function_tool(Add, name="add")
        answer = await client.chat.completions.parse(model="tiny", messages=[ASK], tools=[add], tool_choice="required")
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.parsed_arguments == Add(**ADD)
    assert pretend.requests[0].params.structured.kind == "json_schema"
    assert json.loads(pretend.requests[0].params.structured.source)["properties"].keys() == {"name", "costs"}
