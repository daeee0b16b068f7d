"""Answers that end within a tool call: the same whole and streamed, and what belongs to a call is never content."""

import pytest
from scripted_server import Scripted, streamed, talking
from tool_calls import ASK, BASE, HOST, PARSERS, written
from tool_texts import SERIES, TOOLS

from quire.records import Registry
from quire.text.parsing.default_tool_format import JSON_CALLS
from quire.text.parsing.output_parser import OutputParser
from quire.text.parsing.tool_calls import ToolCallExtractor, merge_parts


def ended(name, demanded, cut):
    """(what has come, content, calls) of an answer of calls that ends after any character, whole and streamed."""
    parser = PARSERS[name] if name and (PARSERS[name].call_format or not demanded) else JSON_CALLS
    text = SERIES[name] if not demanded else written(name) if parser.name == name else HOST
    reader = OutputParser(tools=ToolCallExtractor(parser, TOOLS, Registry(), lambda: "id", calls_required=demanded))
    for end in range(1, len(text)):
        whole, stream = reader.read(text[:end], cut), reader.stream()
        parts = [part for character in text[:end] for part in stream.push(character)] + stream.flush(cut)
        assert merge_parts(parts) == (whole.content, whole.calls)
        yield text[:end], whole.content, whole.calls


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("name", [*PARSERS, None])
def test_nothing_of_a_demanded_call_is_content(name, cut):
    assert not [came for came, content, _ in ended(name, True, cut) if content]


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("name", [name for name, parser in PARSERS.items() if parser.start and parser.end])
def test_nothing_of_a_call_that_the_model_chose_is_content_but_half_a_delimiter(name, cut):
    start, whole = PARSERS[name].start, ToolCallExtractor(PARSERS[name], TOOLS, Registry()).read(SERIES[name])[0]
    text = SERIES[name].split(start)[0]
    for _, content, _ in ended(name, False, cut):
        assert whole.startswith(content or "") or any(content == text + start[:i] for i in range(len(start)))


async def test_a_cut_call_is_the_same_whole_and_streamed_by_whomever_it_is_chosen(tmp_path):
    text = written("hermes")
    for choice in ("auto", "required"):
        for end, calls in ((20, []), (60, ["add"])):
            async with talking(tmp_path, Scripted(text), tool_parser=PARSERS["hermes"]) as client:
                asked = {**BASE, "messages": [ASK], "tool_choice": choice, "max_tokens": end}
                (whole,) = (await client.chat.completions.create(**asked)).choices
                content, _, made, finish, _ = await streamed(client, **asked)
            assert (finish, content) == (whole.finish_reason, whole.message.content or "") == ("length", "")
            assert [(call["name"], call["arguments"]) for call in made] == [
                (call.function.name, call.function.arguments) for call in whole.message.tool_calls or []
            ]
            assert [call["name"] for call in made] == calls
