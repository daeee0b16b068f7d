"""The bundled formats of tool calls: every one however its text is cut, broken ones, and how they are chosen."""

import json

import pytest
from tool_texts import ADD, CALLS, CONTENTS, LOOK, MORE, NO_CALLS, SERIES, TOOLS, USUAL

from quire.records import Registry
from quire.text.parsing.output_parser import OutputParser
from quire.text.parsing.tool_calls import ToolCallExtractor, ToolDelta, merge_parts
from quire.text.parsing.tool_spans import JsonScanner
from quire_plugins.tools import quire_tool_parsers
from quire_testing import check_tool_parser

PARSERS = {parser.name: parser for parser in quire_tool_parsers()}


def reader_of(name, tools=TOOLS):
    return OutputParser(tools=ToolCallExtractor(PARSERS[name], tools, Registry()))


def test_every_bundled_parser_is_tried_here() -> None:
    assert set(SERIES) == set(PARSERS)


@pytest.mark.parametrize("name", PARSERS)
def test_several_calls_are_found_however_the_text_is_cut(name: str) -> None:
    text = SERIES[name]
    check_tool_parser(PARSERS[name], {text: CALLS}, tools=TOOLS, contents={text: CONTENTS.get(name, USUAL)})


LEGAL_NAMES = ["a-b", "-", "_", "9", "7-up", "class", "None", "function", "functools", "call", "x" * 64]
"""Names that requests may have and that some format could stumble over."""


@pytest.mark.parametrize("name", PARSERS)
def test_every_name_that_a_tool_may_have_is_read(name: str) -> None:
    for odd in LEGAL_NAMES:
        tools = [{"type": "function", "function": {**TOOLS[0]["function"], "name": odd}}, TOOLS[1]]
        reader = reader_of(name, tools)
        text = SERIES[name].replace("add", odd)
        stream = reader.stream()
        parts = [part for letter in text for part in stream.push(letter)]
        whole = reader.read(text)
        for content, calls in ((whole.content, whole.calls), merge_parts([*parts, *stream.flush()])):
            made = [(call.name, json.loads(call.arguments)) for call in calls]
            assert made == [(odd, ADD), ("look", LOOK)]
            assert (content or "") == CONTENTS.get(name, USUAL)


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in MORE.items() for text in texts])
def test_other_spellings_are_understood(name: str, text: str) -> None:
    check_tool_parser(PARSERS[name], {text: MORE[name][text]}, tools=TOOLS)


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in NO_CALLS.items() for text in texts])
def test_what_is_no_call_comes_back_as_text(name: str, text: str) -> None:
    check_tool_parser(PARSERS[name], {text: []}, tools=TOOLS, contents={text: text})


@pytest.mark.parametrize("name", PARSERS)
def test_an_answer_without_calls_streams_as_it_comes(name: str) -> None:
    stream = reader_of(name).stream()
    assert [stream.push(word) for word in ("Just ", "words.")] == [["Just "], ["words."]]
    assert stream.flush() == []


@pytest.mark.parametrize("name", [name for name, parser in PARSERS.items() if parser.call_prefix])
def test_arguments_written_as_json_stream_while_they_are_written(name: str) -> None:
    stream = reader_of(name).stream()
    before = SERIES[name].index('{"a": 1')
    parts = [part for part in stream.push(SERIES[name][: before + 8]) if isinstance(part, ToolDelta)]
    assert [(part.name, part.arguments) for part in parts] == [("add", ""), (None, '{"a": 1,')]
    assert stream.push("x") == [ToolDelta(0, "x")]


@pytest.mark.parametrize("cut", [False, True])
def test_a_call_that_breaks_off_is_one_as_far_as_it_came(cut: bool) -> None:
    (call,) = ToolCallExtractor(PARSERS["hermes"], TOOLS, Registry()).read(
        '<tool_call>{"name": "add", "arguments": {"a": ', cut
    )[1]
    assert (call.name, call.arguments) == ("add", '{"a": ')


BROKEN_OFF = {
    "hermes": ["<tool_call>{", '<tool_call>{"name": "f", <tool_call>', '<tool_call>{"name": "add", "arguments": '],
    "gemma4": ["<|tool_call>call:f{a:1"],
    "qwen3_coder": ["<tool_call>\n<function=ad"],
    "deepseek_v3": ["<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in BROKEN_OFF.items() for text in texts])
def test_a_call_that_breaks_off_before_it_can_be_read_is_no_text(name: str, text: str) -> None:
    check_tool_parser(PARSERS[name], {text: []}, tools=TOOLS, contents={text: ""})


def test_a_call_without_an_end_delimiter_that_cannot_be_read_is_text_unless_it_was_cut() -> None:
    reader = ToolCallExtractor(PARSERS["mistral"], TOOLS, Registry())
    assert reader.read("[TOOL_CALLS]add[ARGS]") == ("[TOOL_CALLS]add[ARGS]", [])
    assert reader.read("[TOOL_CALLS]add[ARGS]", truncated=True) == ("", [])


@pytest.mark.parametrize("name", PARSERS)
def test_brackets_without_end_break_nothing(name: str) -> None:
    parser = PARSERS[name]
    for inside in (
        "[" * 100_000,
        '{"a":' * 50_000,
        "call:f" + "{a:" * 50_000,
        "[f(a=" + "(" * 50_000,
        "<function=" * 50_000,
    ):
        text = parser.start + inside + parser.end
        answer = reader_of(name).read(text)
        assert (answer.content, answer.calls) == (text, [])


def test_mistral_ids_have_the_length_its_templates_demand() -> None:
    (call, _) = ToolCallExtractor(PARSERS["mistral"], TOOLS, Registry()).read(SERIES["mistral"])[1]
    assert len(call.id) == 9
    assert call.id.isalnum()


FRAMED = [name for name, parser in PARSERS.items() if parser.call_format]


@pytest.mark.parametrize("name", FRAMED)
@pytest.mark.parametrize("template", ["", "[TOOL_CALLS]name[ARGS]"])
def test_a_parser_reads_what_its_own_frame_demands(name: str, template: str) -> None:
    parser = PARSERS[name]
    assert parser.call_format is not None
    frames = [(parser.call_format(call.name, template), call) for call in CALLS]
    first = frames[0][0]
    written = first.separator.join(frame.before + call.arguments + frame.after for frame, call in frames)
    check_tool_parser(parser, {first.first + written + first.last: CALLS}, tools=TOOLS)


TEMPLATES = {
    "hermes": "<tools></tools> within <tool_call></tool_call> XML tags:\\n<tool_call>\\n",
    "qwen3_coder": "<tool_call>\\n<function=example_function_name>\\n<parameter=example_parameter_1>",
    "llama3_json": '<|start_header_id|> {"name": function name, "parameters": dictionary of argument names}',
    "pythonic": "<|start_header_id|> [func_name1(params_name1=params_value1, params_name2=params_value2...)]",
    "llama4_pythonic": "<|header_start|> [func_name1(params_name1=params_value1, params_name2=params_value2...)]",
    "mistral": "[AVAILABLE_TOOLS][/AVAILABLE_TOOLS][TOOL_CALLS][",
    "granite": "respond with <|tool_call|> followed by a JSON list of tools used",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + '\\n' + '```json'",
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' + arguments",
    "phi4_mini_json": "'<|tool|>' + message['tools'] + '<|/tool|>'",
    "functiongemma": "<start_function_declaration> <start_function_call>call:",
    "gemma4": "<|tool> <|tool_call>call:",
    "openai": "<|start|>assistant<|channel|>commentary to=functions.' + name + '<|message|>",
    None: "{% for message in messages %}{{ message.content }}{% endfor %}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_says_which_format_it_is_and_never_two(name: str | None) -> None:
    matching = [parser.name for parser in PARSERS.values() if parser.matches(TEMPLATES[name])]
    assert matching == ([name] if name else [])


def test_the_end_of_a_json_value_is_found_in_pieces() -> None:
    text = '{"a": "}\\"]\\\\", "b": [{}, "{"]} rest'
    for cut in range(len(text)):
        end = JsonScanner()
        count = end.scan(text[:cut])
        count += end.scan(text[cut:]) if not end.done else 0
        assert text[count:] == " rest"
        assert json.loads(text[:count])
