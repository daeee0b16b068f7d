"""Stop strings and spans are found in text that arrives in parts."""

import itertools

import pytest
from hypothesis import given, settings, strategies as st

from quire.text.parsing.scanner import MatchSpan, ScanEvent, TextScanner

# --- stop strings and spans ------------------------------------------------------------------------


def run(machine: TextScanner, pieces: list[str]) -> tuple[list[ScanEvent], str | None]:
    state, events = machine.start(), []
    for piece in pieces:
        step = machine.step(state, piece)
        state = step.state
        events.extend(step.events)
    step = machine.flush(state)
    return [*events, *step.events], step.matched


def joined(events: list[ScanEvent]) -> list[tuple[str, int, str]]:
    """Texts of one kind and span joined, delimiters kept as marks."""
    out: list[tuple[str, int, str]] = []
    for event in events:
        mark = "(" if event.opened else ")" if event.closed else event.text
        if mark == event.text and out and out[-1][:2] == (event.kind, event.number) and out[-1][2] != "(":
            mark = out.pop()[2] + mark
        out.append((event.kind, event.number, mark))
    return out


@pytest.mark.parametrize(
    ("stops", "text", "expected", "matched"),
    [
        ((), "anything", "anything", None),
        (("stop",), "go on", "go on", None),
        (("stop",), "go stop now", "go ", "stop"),
        (("b", "abc"), "xabcb", "xa", "b"),
        (("abc", "bc"), "xabc", "x", "abc"),
        (("aab",), "aaab", "a", "aab"),
        (("\n\n",), "one\ntwo\n\nthree", "one\ntwo", "\n\n"),
        (("END",), "the EN", "the EN", None),
    ],
)
def test_text_ends_before_the_stop_string_that_is_complete_first(
    stops: tuple[str, ...], text: str, expected: str, matched: str | None
) -> None:
    events, found = run(TextScanner(stops), list(text))
    assert ("".join(event.text for event in events), found) == (expected, matched)


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    machine = TextScanner(["<end>"])
    step = machine.step(machine.start(), "abc <en")
    assert (step.text, step.state.held) == ("abc ", "<en")
    assert machine.step(step.state, "t").text == "<ent"
    assert machine.step(step.state, "d> and more").matched == "<end>"


def test_a_disarmed_machine_finds_nothing_that_is_complete_by_then() -> None:
    machine = TextScanner(["ab"])
    step = machine.step(machine.start(), "ab a", enabled=False)
    assert (step.text, step.matched, step.state.held) == ("ab ", None, "a")
    assert machine.step(step.state, "b").matched == "ab"


def test_spans_are_separated_from_text() -> None:
    machine = TextScanner(["STOP"], [MatchSpan("think", "<t>", "</t>"), MatchSpan("tool", "[", "]")])
    events, matched = run(machine, ["a<t>b[</t>c[d]", "[e ST", "OP]f"])
    assert joined(events) == [
        ("text", -1, "a"),
        ("think", 0, "("),
        ("think", 0, "b["),
        ("think", 0, ")"),
        ("text", -1, "c"),
        ("tool", 1, "("),
        ("tool", 1, "d"),
        ("tool", 1, ")"),
        ("tool", 2, "("),
        ("tool", 2, "e "),
    ]
    assert matched == "STOP"


def test_a_span_may_begin_with_the_text_and_last_to_its_end() -> None:
    thinking, _ = run(TextScanner(spans=[MatchSpan("think", "", "</t>")]), ["a</", "t>b"])
    assert joined(thinking) == [("think", 0, "a"), ("think", 0, ")"), ("text", -1, "b")]
    rest, _ = run(TextScanner(spans=[MatchSpan("tool", "[CALLS]", "")]), ["a[CA", "LLS]b] c"])
    assert joined(rest) == [("text", -1, "a"), ("tool", 0, "("), ("tool", 0, "b] c")]


@settings(max_examples=400, deadline=None)
@given(
    text=st.text("ab<>[]", max_size=30),
    stops=st.lists(st.text("ab<>[]", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 30), max_size=8),
)
def test_any_split_of_the_text_gives_the_same(text: str, stops: list[str], cuts: list[int]) -> None:
    machine = TextScanner(stops, [MatchSpan("one", "<a", "a>"), MatchSpan("two", "[", "]")])
    at = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[i:j] for i, j in itertools.pairwise(at)]
    whole, found = run(machine, [text])
    split, also = run(machine, pieces)
    assert (joined(split), also) == (joined(whole), found)
    if not stops:
        delimiters = {"one": ("<a", "a>"), "two": ("[", "]")}
        again = "".join(
            delimiters[e.kind][0] if e.opened else delimiters[e.kind][1] if e.closed else e.text for e in split
        )
        assert again == text
