"""Whole round trips with the `openai` client in every format: called, the results sent back, answered."""

import json

import pytest
from scripted_server import Scripted, streamed, talking
from tool_formats import FORMS, RESULTS
from tool_texts import ADD, BOTH, CONTENTS, LOOK, SERIES, TOOLS, USUAL

from quire.records import Registry
from quire.text.parsing.output_parser import OutputParser
from quire.text.parsing.tool_calls import ToolCallExtractor
from quire_plugins.tools import quire_tool_parsers

PARSERS = {parser.name: parser for parser in quire_tool_parsers()}
ASK = {"role": "user", "content": "Add and look."}
BASE = {"model": "tiny", "tools": TOOLS}


async def whole(client, messages):
    """(message, finish reason) of an answer that comes at once."""
    (choice,) = (await client.chat.completions.create(**BASE, messages=messages)).choices
    return choice.message.model_dump(), choice.finish_reason


async def in_chunks(client, messages):
    """The same of a stream, put together by hand as the protocol says."""
    content, _, calls, finish, _ = await streamed(client, **BASE, messages=messages)
    assert len({call["id"] for call in calls}) == len(calls)
    made = [{"id": call.pop("id"), "type": "function", "function": call} for call in calls]
    return {"role": "assistant", "content": content, **({"tool_calls": made} if made else {})}, finish


async def by_the_client(client, messages):
    """The same of a stream, put together by the client."""
    async with client.chat.completions.stream(**BASE, messages=messages) as stream:
        (choice,) = (await stream.get_final_completion()).choices
    return choice.message.model_dump(), choice.finish_reason


def test_every_bundled_parser_has_its_form_here() -> None:
    assert set(FORMS) == set(PARSERS)


@pytest.mark.parametrize("ask", [whole, in_chunks, by_the_client])
@pytest.mark.parametrize("name", PARSERS)
async def test_calls_and_results_come_back_to_the_model_in_its_own_form(tmp_path, name, ask) -> None:
    form, parser = FORMS[name], PARSERS[name]
    pretend = Scripted(SERIES[name], "It is 3.", per_step=3)
    async with talking(tmp_path, pretend, template=form.source, tool_parser=parser) as client:
        message, finish = await ask(client, [ASK])
        assert (message["content"] or "", finish) == (CONTENTS.get(name, USUAL), "tool_calls")
        calls = message["tool_calls"]
        made = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]
        assert made == [("add", ADD), ("look", LOOK)]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": text}
            for call, text in zip(calls, RESULTS, strict=True)
        ]
        answer, finish = await ask(client, [ASK, message, *results])
    assert (answer["content"], answer.get("tool_calls"), finish) == ("It is 3.", None, "stop")
    asked, more = pretend.prompt(0), pretend.prompt(1)
    assert more.startswith(asked)  # nothing that the model saw has changed
    shown = form.shown([call["id"] for call in calls])
    places = [more.index(text, len(asked)) for text in shown]
    assert places == sorted(places)
    read = OutputParser(tools=ToolCallExtractor(parser, TOOLS, Registry())).read(shown[0])
    assert [(call.name, json.loads(call.arguments)) for call in read.calls] == BOTH
