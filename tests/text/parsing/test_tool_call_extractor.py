"""Tool calls found in text, whole and as it streams."""

import pytest
from hypothesis import given, settings, strategies as st

from quire.errors import ConfigError, PluginFailed
from quire.hooks.registry import PluginCallStats
from quire.records import Registry, ToolCall, ToolParser
from quire.text.parsing.tool_calls import HOOK, ToolCallExtractor, ToolDelta, choose_parser
from quire_plugins.tools import quire_tool_parsers

HERMES = next(iter(quire_tool_parsers()))
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": "é"}}\n</tool_call>'


def registry_of(*parsers: ToolParser) -> Registry:
    return Registry(
        records={HOOK: {parser.name: parser for parser in parsers}},
        origin={(HOOK, parser.name): "tools" for parser in parsers},
        counter=PluginCallStats(),
    )


def reader(parser: ToolParser = HERMES) -> ToolCallExtractor:
    numbers = iter(range(99))
    return ToolCallExtractor(parser, [], registry_of(parser), new_id=lambda: f"call-{next(numbers)}")


def test_a_call_is_read_and_the_text_around_it_kept() -> None:
    content, calls = reader().read(f"Let me see.\n{CALL}\n{CALL}\n")
    assert content == "Let me see.\n"
    assert [(call.id, call.name, call.arguments) for call in calls] == [
        ("call-0", "add", '{"a": "é"}'),
        ("call-1", "add", '{"a": "é"}'),
    ]
    assert reader().read("no call") == ("no call", [])
    assert reader().read(CALL)[0] is None


@pytest.mark.parametrize("body", ["{", "[]", '{"name": 5}', "no json", "[" * 100_000])
def test_what_cannot_be_read_stays_text(body: str) -> None:
    text = f"a <tool_call>{body}</tool_call> b"
    assert reader().read(text) == (text, [])


def test_a_call_whose_end_is_missing_still_counts() -> None:
    content, calls = reader().read(CALL.removesuffix("</tool_call>"))
    assert (content, [call.name for call in calls]) == (None, ["add"])
    assert reader().read("text <tool_ca") == ("text <tool_ca", [])


@settings(max_examples=100, deadline=None)
@given(cuts=st.lists(st.integers(1, 120), max_size=12))
def test_streamed_calls_are_the_whole_ones(cuts: list[int]) -> None:
    text = f"See <b>:\n{CALL} and {CALL}\n<tool_call>oops</tool_call> end"
    stream, parts, at = reader().stream(), [], 0
    for cut in [*sorted(cuts), len(text)]:
        parts.extend(stream.push(text[at:cut]))
        at = max(at, cut)
    parts.extend(stream.flush())
    content, calls = reader().read(text)
    assert "".join(part for part in parts if isinstance(part, str)) == content
    deltas = [part for part in parts if isinstance(part, ToolDelta)]
    assert [(d.index, d.id, d.name) for d in deltas if d.id] == [(0, "call-0", "add"), (1, "call-1", "add")]
    assert ["".join(d.arguments for d in deltas if d.index == i) for i in (0, 1)] == [call.arguments for call in calls]
    assert stream.num_calls == 2


def test_a_format_without_delimiters_reads_the_whole_text() -> None:
    bare = ToolParser("bare", "", "", lambda text, _: [ToolCall(text.strip(), "{}")] if "(" in text else [], bool)
    assert [call.name for call in reader(bare).read("f()")[1]] == ["f()"]
    assert reader(bare).read("just text") == ("just text", [])


def test_a_parser_that_breaks_fails_the_request_and_is_counted() -> None:
    def broken(text: str, tools: object) -> list[ToolCall]:
        raise KeyError(text)

    parser = ToolParser("broken", "<c>", "</c>", broken, bool)
    registry = registry_of(parser)
    with pytest.raises(PluginFailed, match="tools"):
        ToolCallExtractor(parser, [], registry).read("<c>x</c>")
    counter = registry.counter
    assert isinstance(counter, PluginCallStats)
    assert counter.snapshot()[0]["errors"] == 1


def test_a_parser_is_chosen_by_name_or_by_the_template() -> None:
    twin = ToolParser("twin", "[", "]", HERMES.parse, HERMES.matches)
    registry = registry_of(HERMES)
    assert choose_parser(registry, "hermes", None) is HERMES
    assert choose_parser(registry, None, "… <tool_call> …") is HERMES
    assert choose_parser(registry, None, "…") is choose_parser(registry, None, None) is None
    with pytest.raises(ConfigError, match=r"not one of hermes"):
        choose_parser(registry, "hermse", None)
    with pytest.raises(ConfigError, match="hermes, twin"):
        choose_parser(registry_of(HERMES, twin), None, "<tool_call>")
    assert ToolCallExtractor(HERMES, [], Registry()).read(CALL)[1][0].id.startswith("chatcmpl-tool-")


def test_a_call_without_arguments_has_none() -> None:
    assert HERMES.parse('{"name": "f"}', []) == [ToolCall("f", "{}")]
