"""The checks of tool parsers and reasoning parsers accept correct ones, and name the fault of others."""

from dataclasses import replace

import pytest

from quire.hooks.registry import load
from quire.records import ReasoningParser, ToolCall, ToolParser
from quire_testing import check_reasoning_parser, check_tool_parser


def parser(parse) -> ToolParser:
    return ToolParser("made", "<call>", "</call>", parse, lambda template: "<call>" in template)


def parse_word(text, tools):
    if not text.strip().isidentifier():
        raise ValueError("not a word")
    return [ToolCall(text.strip(), "{}")]


def test_a_right_parser_passes() -> None:
    texts = {"a <call>f</call> b<call> g </call>": [ToolCall("f", "{}"), ToolCall("g", "{}")], "none <cal l>": []}
    check_tool_parser(parser(parse_word), texts, broken=["1 2"], templates={"<call>": True, "": False})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"texts": {"<call>f</call>": []}}, "gives .*ToolCall"),
        ({"texts": {}, "broken": ["fine"]}, "must raise ValueError for 'fine'"),
        ({"texts": {}, "templates": {"<call>": False}}, "matches must give False"),
    ],
)
def test_a_wrong_parser_is_noticed(arguments: dict, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_tool_parser(parser(parse_word), **arguments)


THINKS = ReasoningParser("made", "<think>", "</think>", lambda template: "<think>" in template)


def test_a_right_reasoning_parser_passes() -> None:
    texts = {"<think>one, two</think>three": ("one, two", "three"), "no reasoning": ("", "no reasoning")}
    check_reasoning_parser(THINKS, texts, templates={"<think>": True, "": False})


@pytest.mark.parametrize("name", ["openai_gptoss", "qwen3", "deepseek_r1"])
def test_bundled_reasoning_parsers_pass(name: str) -> None:
    record = load().by_hook("quire_reasoning_parsers")[name]
    text = f"{record.start}So.{record.end}Yes."
    if record.channels is not None:
        text = "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    check_reasoning_parser(record, {text: ("So.", "Yes.")})


@pytest.mark.parametrize(
    ("record", "arguments", "sentence"),
    [
        (THINKS, {"texts": {"<think>a</think>b": ("a", "c")}}, "gives .*'a', 'b'"),
        (THINKS, {"texts": {}, "templates": {"<think>": False}}, "matches must give False"),
        (replace(THINKS, end=""), {"texts": {}}, "needs `start` and `end`"),
        (replace(THINKS, start="<thought>"), {"texts": {"<think>a</think>b": ("a", "b")}}, "gives"),
    ],
)
def test_a_wrong_reasoning_parser_is_noticed(record: ReasoningParser, arguments: dict, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_reasoning_parser(record, **arguments)
