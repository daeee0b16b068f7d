"""Hostile constraints: refused or bounded, and the others are served meanwhile."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from engine_rig import Rig
from structured_rig import PROMPT, answers, refusals, structured_rig

from quire.engine.structured import deadline as deadlines
from quire.engine.structured.compilers import GrammarCompilers
from quire.engine.structured.deadline import Deadline
from quire.errors import BadRequest, Overloaded, UnsupportedConstraint
from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.params.structured import MAX_SOURCE, StructuredSpec
from quire.records import Context, GrammarBackend, Registry
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_testing import byte_tokenizer

WORDS = StructuredSpec(kind="words", source="a b")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with structured_rig(tmp_path_factory.mktemp("grammars")) as made:
        yield made


class Endless:
    """Never done; at once where it is not asked for much."""

    def __init__(self, context: Context) -> None:
        assert context.tokenizer.token_bytes(97) == b"a"

    def needs_process(self, asked: StructuredSpec) -> bool:
        if asked.source == "refused":
            raise UnsupportedConstraint("not here.")
        return True

    def warm_up(self) -> None:
        self.warm = True

    def compile_in_worker(self, asked: StructuredSpec) -> Any:
        assert self.warm
        if asked.source == "die":
            raise SystemExit
        if asked.source == "wrong":
            raise BadRequest("It is wrong.")
        while asked.source == "loop":
            pass
        return len([0] * 10**11) if asked.source == "memory" else asked.source

    def load(self, compiled: str) -> str:
        return compiled.upper()


def test_what_is_isolated_is_ended_and_the_next_is_served(tmp_path: Any) -> None:
    tokenizer = Tokenizer.load(byte_tokenizer(tmp_path))
    record = GrammarBackend("endless", frozenset({"words"}), Endless, isolated=True)
    found = Registry(
        records={"quire_grammar_backends": {"endless": record}}, origin={("quire_grammar_backends", "endless"): "p"}
    )
    compilers: Any = GrammarCompilers(found, lambda plugin: Context(vocab_size=264, tokenizer=tokenizer))
    try:
        with pytest.raises(UnsupportedConstraint, match="not here"):
            compilers.compile(record, replace(WORDS, source="refused"), Deadline(60.0))
        assert compilers._states["endless"].process is None
        compilers._start_wait_s = 0.0
        with pytest.raises(Overloaded, match="still starting"):
            compilers.compile(record, replace(WORDS, source="fine"), Deadline(60.0))
        compilers._start_wait_s = 60.0
        assert compilers.compile(record, replace(WORDS, source="begun"), Deadline(60.0)) == "BEGUN"
        for source, reason in (("loop", "longer than 1 s"), ("die", "ended while"), ("memory", "memory")):
            with pytest.raises(UnsupportedConstraint, match=reason):
                compilers.compile(record, replace(WORDS, source=source), Deadline(1.0 if source == "loop" else 60.0))
        with pytest.raises(BadRequest, match=r"^It is wrong.$"):
            compilers.compile(record, replace(WORDS, source="wrong"), Deadline(60.0))
        assert compilers.compile(record, replace(WORDS, source="fine"), Deadline(60.0)) == "FINE"
    finally:
        compilers.close()


def test_a_start_that_is_waited_for_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(deadlines.time, "monotonic", lambda: now)
    deadline = Deadline(10.0)
    now += 4
    with deadline.paused():
        now += 25
        assert not deadline.has_passed(0.5)
    assert deadline.left_s == 6
    now += 6.4
    assert (deadline.left_s, deadline.has_passed(0.5), deadline.has_passed()) == (0, False, True)


class Careful:
    """Tries what is long elsewhere; compiles the rest here."""

    def __init__(self, context: Context) -> None:
        self.process = os.getpid()

    def needs_process(self, asked: StructuredSpec) -> bool:
        return len(asked.source) >= 8

    def warm_up(self) -> None:
        pass

    def compile(self, asked: StructuredSpec) -> Any:
        return "compiled", os.getpid()

    def compile_in_worker(self, asked: StructuredSpec) -> Any:
        while asked.source == "for ever":
            pass
        return self.process

    def load(self, attempted: Any) -> Any:
        return "finished", attempted


@pytest.mark.usefixtures("fresh_processes")
def test_what_may_take_long_is_compiled_in_a_process_that_is_ended_in_time(tmp_path: Any) -> None:
    record = GrammarBackend("careful", frozenset({"words"}), Careful)
    hook = "quire_grammar_backends"
    found = Registry(records={hook: {"careful": record}}, origin={(hook, "careful"): "p"})
    tokenizer = Tokenizer.load(byte_tokenizer(tmp_path))
    compilers: Any = GrammarCompilers(found, lambda plugin: Context(vocab_size=264, tokenizer=tokenizer))
    try:
        assert compilers.compile(record, replace(WORDS, source="7 chars"), Deadline(60.0)) == ("compiled", os.getpid())
        assert compilers._states["careful"].process is None
        done, process = compilers.compile(record, replace(WORDS, source="8 letter"), Deadline(60.0))
        assert done == "finished"
        assert process != os.getpid()
        assert os.getsid(process) == os.getsid(0)  # where groups of a session share the cores, it is no group
        assert os.getpgid(process) != os.getpgid(0)  # Ctrl-C does not reach it
        with pytest.raises(UnsupportedConstraint, match=r"longer than 0\.5 s"):
            compilers.compile(record, replace(WORDS, source="for ever"), Deadline(0.5))
    finally:
        compilers.close()


DEEP = '{"type":"array","items":' * 500 + "{}" + "}" * 500
HOSTILE = {
    "deep": ("json_schema", DEEP),
    "deeper than Python": ("json_schema", "[" * 100_000),
    "no JSON": ("json_schema", "{"),
    "no schema": ("json_schema", "[]"),
    "itself": ("json_schema", '{"$ref":"#"}'),
    "a circle": ("json_schema", '{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}'),
    "missing": ("json_schema", '{"$ref":"#/$defs/nothing"}'),
    "far away": ("json_schema", '{"$ref":"http://example.com/schema"}'),
    "too long": ("json_schema", '{"type":"string","minLength":1000000}'),
    "doubling": ("regex", "(" * 12 + "a" + "{1,9})" * 12),
    "many copies": ("regex", "a{100000}"),
    "no regex": ("regex", "(a"),
    "nested groups": ("regex", "(" * 5000 + "a" + ")" * 5000),
    "no grammar": ("grammar", "start: nothing"),
    "bad grammar": ("grammar", "start: ("),
    "bad ebnf": ("grammar", "root ::= ("),
    "no start": ("grammar", 'other: "a"'),
    "bad tag": ("structural_tag", '{"structures":[],"triggers":["a"]}'),
    "no trigger": ("structural_tag", '{"structures":[{"begin":"x","schema":{},"end":""}],"triggers":["a"]}'),
    "no calls": ("calls", '{"tags":[]}'),
    "separators that are none": ("calls", '{"tags":[{"begin":"a","schema":{},"end":"b","separators":[";",":"]}]}'),
    "one separator": ("calls", '{"tags":[{"begin":"a","schema":{},"end":"b","separators":[","]}]}'),
    "separators that are no texts": ("calls", '{"tags":[{"begin":"a","schema":{},"end":"b","separators":[{},[]]}]}'),
    "far too many": ("calls", '{"tags":[{"begin":"a","schema":{},"end":"b"}],"at_least":100000}'),
    "no list": ("choice", '{"a":1}'),
    "large and wrong": ("json_schema", json.dumps({"enum": ["x" * 100] * 200, "type": "nothing"})),
}
LONG = "long word " * 5000
FORCED = {
    "said once": ("json_schema", json.dumps({"const": LONG}), f'"{LONG}'),
    "said in turns": (
        "json_schema",
        json.dumps({"minItems": 8000, "items": {"const": LONG}, "type": "array"}),
        f'["{LONG}',
    ),
    "a name": (
        "json_schema",
        json.dumps({"properties": {LONG: {}}, "required": [LONG], "type": "object"}),
        f'{{"{LONG}',
    ),
    "a pattern": (
        "json_schema",
        '{"minItems":8000,"items":{"type":"string","pattern":"^a{9000}$"},"type":"array"}',
        '["' + "a" * 100,
    ),
    "a rule": ("grammar", 'start: a{1000}\na: A\nA: B{100}\nB: "x"{1000}', "x" * 100),
    "a call": ("calls", json.dumps({"tags": [{"begin": LONG, "schema": {}, "end": LONG}], "at_least": 250}), LONG),
    "a separator": (
        "calls",
        json.dumps({"tags": [{"begin": "a", "schema": {"const": 1}, "end": "b"}], "at_least": 250, "separator": LONG}),
        f"a1b{LONG}",
    ),
}
"""By name a kind, a source, and what must be said."""


def test_hostile_sources_are_refused_and_the_engine_goes_on(rig: Rig) -> None:
    asked = [StructuredSpec(kind=kind, source=source, backend="guidance") for kind, source in HOSTILE.values()]
    beside = rig.add(PROMPT, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    assert all(reason for reason in refusals(rig, asked))
    assert beside
    assert answers(rig, [StructuredSpec(kind="regex", source="fine")]) == ["fine"]


@pytest.mark.parametrize("name", FORCED)
def test_a_long_text_that_must_be_said_is_said_bit_by_bit(rig: Rig, name: str) -> None:
    kind, source, text = FORCED[name]
    asked = StructuredSpec(kind=kind, source=source, backend="guidance", any_whitespace=False)
    request = rig.add(PROMPT, SamplingParams(max_tokens=30, structured=asked))
    answer = rig.drain()[request, 0]
    assert answer.last.finish_reason == "length", answer.last.error
    assert text.startswith(bytes(answer.token_ids).decode())


def test_what_is_wrong_with_a_grammar_is_said_of_its_own_lines(rig: Rig) -> None:
    asked = StructuredSpec(kind="grammar", source='start: a\na: "a" | (', backend="guidance")
    (reason,) = refusals(rig, [asked])
    assert "2(" in reason


def test_a_source_has_a_bound() -> None:
    with pytest.raises(BadRequest, match=f"at most {MAX_SOURCE} characters"):
        StructuredSpec(kind="json_schema", source=json.dumps({"description": "x" * 10_000_000}))


PATTERNS = [f"(a|b){{{i}}}c" for i in range(60)]
CHAIN = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}", "pattern": each} for i, each in enumerate(PATTERNS)}
EXPLOSIVE = {
    "all of many patterns": ("json_schema", json.dumps({"allOf": [{"pattern": each} for each in PATTERNS]})),
    "one after another": ("json_schema", json.dumps({"$ref": "#/$defs/d0", "$defs": {**CHAIN, "d60": {}}})),
    "all at once": ("grammar", "start: A\nA: " + " & ".join(f"/.*{i}.{{{i}}}/" for i in range(100, 500))),
}


def test_what_would_take_for_ever_is_ended(tmp_path: Any) -> None:
    found = registry.load(None)
    record = found.by_hook("quire_grammar_backends")["guidance"]
    tokenizer = Tokenizer.load(byte_tokenizer(tmp_path))
    compilers: Any = GrammarCompilers(found, lambda plugin: Context(vocab_size=264, tokenizer=tokenizer))
    try:
        for kind, source in EXPLOSIVE.values():
            assert len(source) < 10_000
            compilers.compile(record, StructuredSpec(kind="grammar", source="start: A\nA: /x/ & /./"), Deadline(60.0))
            with pytest.raises(UnsupportedConstraint):
                compilers.compile(record, StructuredSpec(kind=kind, source=source), Deadline(0.5))
    finally:
        compilers.close()
