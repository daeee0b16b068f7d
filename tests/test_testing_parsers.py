"""The check of tool parsers for plugin authors says yes and no, each for the right reason."""

import pytest

from quire.records import ToolCall, ToolParser
from quire.testing import check_parser


def parser(parse) -> ToolParser:
    return ToolParser("made", "<call>", "</call>", parse, lambda template: "<call>" in template)


def parse_word(text, tools):
    if not text.strip().isidentifier():
        raise ValueError("not a word")
    return [ToolCall(text.strip(), "{}")]


def test_a_right_parser_passes() -> None:
    texts = {"a <call>f</call> b<call> g </call>": [ToolCall("f", "{}"), ToolCall("g", "{}")], "none <cal l>": []}
    check_parser(parser(parse_word), texts, broken=["1 2"], templates={"<call>": True, "": False})


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
        check_parser(parser(parse_word), **arguments)
