"""Compiling beside the loop: who is asked, what is kept, what is refused, and that nothing hostile stops the others."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from engine_rig import Rig
from structured_rig import PROMPT, answers, refusals, structured_rig

from quire.engine.structured.constraint_tracker import ConstraintTracker
from quire.engine.structured.grammars import MIN_BYTES, Grammars
from quire.errors import BadRequest, ConfigError, Overloaded, UnsupportedConstraint
from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.params.structured import StructuredSpec
from quire.records import Context, GrammarBackend, Registry
from quire.types import Prompt, Request

WORDS = StructuredSpec(kind="words", source="a b")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with structured_rig(tmp_path_factory.mktemp("grammars")) as made:
        yield made


class Pretend:
    """A grammar back end that the test controls."""

    def __init__(self, act: Any) -> None:
        self.act, self.asked = act, 0

    def compile(self, asked: StructuredSpec) -> Any:
        self.asked += 1
        return self.act(asked)


def grammars(*backends: tuple[str, int, Pretend], **settings: Any) -> Grammars:
    records = {
        name: GrammarBackend(name, frozenset({"words"}), lambda context, made=made: made, priority)
        for name, priority, made in backends
    }
    hook = "quire_grammar_backends"
    found = Registry(records={hook: records}, origin={(hook, name): "p" for name in records})
    tokenizer = SimpleNamespace(vocab_size=32, token_bytes=lambda i: bytes([i]))
    return Grammars(
        found, lambda plugin: Context(), ConstraintTracker(found, 32, tokenizer=lambda: tokenizer), **settings
    )


def fail(error: Exception) -> Pretend:
    def act(asked: StructuredSpec) -> Any:
        raise error

    return Pretend(act)


def outcome(made: Grammars, asked: StructuredSpec) -> Any:
    params = SamplingParams(structured=asked)
    made.submit(params)
    while not made.is_ready(asked):
        made.wait_for_any(1.0)
    return made.start(asked, []).matcher


class Started:
    def start(self) -> str:
        return "begun"


def works() -> Pretend:
    return Pretend(lambda asked: Started())


def test_the_first_by_priority_that_can_is_taken() -> None:
    cannot, can, last = fail(UnsupportedConstraint("it has no words.")), works(), works()
    assert outcome(grammars(("last", 1, last), ("first", 3, cannot), ("second", 2, can)), WORDS) == "begun"
    assert (cannot.asked, can.asked, last.asked) == (1, 1, 0)


def test_a_wrong_source_is_not_tried_elsewhere() -> None:
    other = works()
    with pytest.raises(BadRequest, match="no words at all"):
        outcome(grammars(("first", 2, fail(BadRequest("no words at all"))), ("second", 1, other)), WORDS)
    assert other.asked == 0


def test_when_no_back_end_can_each_reports_why() -> None:
    made = grammars(
        ("x", 2, fail(UnsupportedConstraint("too long."))), ("y", 1, fail(UnsupportedConstraint("too deep.")))
    )
    with pytest.raises(BadRequest, match=r"No structured-output back end can do this. x: too long. y: too deep."):
        outcome(made, WORDS)


def test_errors_name_the_field_that_asked_though_others_asked_for_the_same() -> None:
    made = grammars(("x", 2, fail(UnsupportedConstraint("too long."))))
    for param in ("structured_outputs", "response_format", "guided_json"):
        with pytest.raises(BadRequest, match=r"x: too long\.") as caught:
            outcome(made, replace(WORDS, param=param))
        assert caught.value.param == param
    with pytest.raises(BadRequest, match="There is no") as caught:
        made.submit(SamplingParams(structured=replace(WORDS, backend="three", param="guided_json")))
    assert caught.value.param == "guided_json"


def test_errors_name_the_field_that_a_back_end_blames() -> None:
    made = grammars(
        ("x", 2, fail(UnsupportedConstraint("too long."))), ("y", 1, fail(UnsupportedConstraint("bad.", "tools[3]")))
    )
    with pytest.raises(BadRequest, match=r"x: too long\. y: bad\.") as caught:
        outcome(made, replace(WORDS, param="tools"))
    assert caught.value.param == "tools[3]"


def test_the_request_names_a_back_end_or_the_server_does() -> None:
    one, two = works(), works()
    made = grammars(("one", 2, one), ("two", 1, two))
    outcome(made, replace(WORDS, backend="two"))
    assert (one.asked, two.asked) == (0, 1)
    outcome(grammars(("one", 2, one), ("two", 1, two), backend="two"), WORDS)
    assert (one.asked, two.asked) == (0, 2)
    with pytest.raises(BadRequest, match="There is no structured-output back end 'three'; there are auto, one, two"):
        made.submit(SamplingParams(structured=replace(WORDS, backend="three")))
    with pytest.raises(BadRequest, match="constrains the output by 'regex'; kinds known: words"):
        made.submit(SamplingParams(structured=StructuredSpec(kind="regex", source="a", backend="one")))


def test_a_server_cannot_be_set_to_a_back_end_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match="--structured-outputs-backend must be one of auto, one, two; got 'nix'"):
        grammars(("one", 2, works()), ("two", 1, works()), backend="nix")


def test_equal_constraints_are_compiled_once_whatever_comes_before_them() -> None:
    one = works()
    made = grammars(("one", 1, one))
    for asked in (WORDS, replace(WORDS), replace(WORDS, after="</think>")):
        outcome(made, asked)
    assert one.asked == 1


class Sized(Started):
    """A grammar that says what it holds."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes


def test_grammars_not_asked_for_longest_go_when_all_hold_too_much() -> None:
    one = Pretend(lambda asked: Sized(int(asked.source)))
    made = grammars(("one", 1, one), cache_bytes=1000)
    for size in ("400", "300", "200", "400", "300"):  # the fourth was there, and is now the second youngest
        outcome(made, replace(WORDS, source=size))
    assert one.asked == 3
    outcome(made, replace(WORDS, source="350"))  # sizes are known when they are compiled, so the next one looks
    outcome(made, replace(WORDS, source="1"))
    assert [key.source for key in made._jobs] == ["400", "300", "350", "1"] or [key.source for key in made._jobs] == [
        "300",
        "350",
        "1",
    ]


def test_what_does_not_say_its_size_is_taken_to_hold_something() -> None:
    one = works()
    made = grammars(("one", 1, one), cache_bytes=3 * MIN_BYTES + 10_000)
    for number in range(8):
        outcome(made, replace(WORDS, source=str(number)))
    assert len(made._jobs) == 4
    outcome(made, replace(WORDS, source="x" * 10_000))
    outcome(made, replace(WORDS, source="last"))
    assert len(made._jobs) == 1


def test_what_begins_after_a_text_needs_the_texts_of_tokens() -> None:
    made = grammars(("one", 1, works()))
    made.constraints = ConstraintTracker(Registry(), 32)
    with pytest.raises(BadRequest, match="starts after a text needs a model with a tokenizer"):
        outcome(made, replace(WORDS, after="</think>"))


def test_a_grammar_that_is_not_compiled_in_time_is_a_retryable_error() -> None:
    gate = threading.Event()
    made = grammars(("slow", 1, Pretend(lambda asked: gate.wait() and Started())), timeout_s=0.05)
    busy = [replace(WORDS, source=str(i)) for i in range(5)]
    for asked in busy:
        made.submit(SamplingParams(structured=asked))
    timer = threading.Timer(0.2, gate.set)
    timer.start()
    with pytest.raises(Overloaded, match="not started in time"):
        outcome(made, busy[-1])
    timer.join()


def test_a_request_may_be_retried_after_that_error() -> None:
    slow = Pretend(lambda asked: Started())
    made = grammars(("slow", 1, slow), timeout_s=0.0)
    for _ in range(2):
        with pytest.raises(Overloaded, match="not started in time"):
            outcome(made, WORDS)
    made._timeout_s = 10.0
    assert outcome(made, WORDS) == "begun"


def test_a_constraint_that_was_refused_is_not_tried_again() -> None:
    refuses = fail(UnsupportedConstraint("it has no words."))
    made = grammars(("only", 1, refuses))
    for _ in range(2):
        with pytest.raises(BadRequest, match="no words"):
            outcome(made, WORDS)
    assert refuses.asked == 1


def test_a_request_that_waits_for_a_grammar_fails_when_its_time_is_up() -> None:
    gate = threading.Event()
    made = grammars(("slow", 1, Pretend(lambda asked: gate.wait() and Started())), timeout_s=0.05)
    try:
        with pytest.raises(BadRequest, match=r"not compiled within 0\.05 s"):
            outcome(made, WORDS)
    finally:
        gate.set()
    while not made._job(WORDS).future.done():
        made.wait_for_any(1.0)
    assert outcome(made, WORDS) == "begun"


def test_requests_whose_grammar_is_being_compiled_are_counted() -> None:
    gate = threading.Event()
    made = grammars(("slow", 1, Pretend(lambda asked: gate.wait() and Started())))
    asked = Request(id="r", prompt=Prompt(token_ids=(1,)), params=SamplingParams(structured=WORDS))
    free = replace(asked, params=SamplingParams())
    made.submit(asked.params)
    try:
        assert made.num_compiling([asked, free, asked]) == 2
    finally:
        gate.set()
    assert outcome(made, WORDS) == "begun"
    assert made.num_compiling([asked, free]) == 0


def test_auto_chooses_a_back_end_that_can(rig: Rig) -> None:
    assert "guidance" in registry.load(None).by_hook("quire_grammar_backends")
    (reason,) = refusals(rig, [StructuredSpec(kind="json_schema", source='{"type":"array","uniqueItems":true}')])
    for name in ("guidance", "outlines", "xgrammar", "lm-format-enforcer"):
        assert f"{name}: it does not enforce `uniqueItems`." in reason


@pytest.mark.parametrize("backend", ["guidance", "outlines", "xgrammar", "lm-format-enforcer"])
def test_every_back_end_serves_requests(rig: Rig, backend: str) -> None:
    (text,) = answers(rig, [StructuredSpec(kind="choice", source='["yes", "no"]', backend=backend)])
    assert text in ("yes", "no")


def test_tagged_calls_and_nothing_else(rig: Rig) -> None:
    tags = [
        {"begin": f'<call>{{"name": "{name}", "arguments": ', "schema": schema, "end": "}</call>"}
        for name, schema in (("add", {"type": "integer", "maximum": 9, "minimum": 0}), ("now", {"enum": [{}]}))
    ]
    for least, most in ((1, 1), (2, 2), (1, 3)):
        source = json.dumps({"tags": tags, "at_least": least, "at_most": most, "separator": "\n"})
        (text,) = answers(rig, [StructuredSpec(kind="calls", source=source, any_whitespace=False)])
        calls = [json.loads(each.removeprefix("<call>").removesuffix("</call>")) for each in str(text).split("\n")]
        assert least <= len(calls) <= most
        assert all(
            call["arguments"] == {} if call["name"] == "now" else call["arguments"] in range(10) for call in calls
        )


def test_a_structural_tag_constrains_what_it_begins(rig: Rig) -> None:
    tag = {"structures": [{"begin": "a", "schema": {"enum": [17]}, "end": "!"}], "triggers": ["a"]}
    for seed in range(4):
        params = SamplingParams(
            seed=seed, max_tokens=120, structured=StructuredSpec(kind="structural_tag", source=json.dumps(tag))
        )
        request = rig.add(PROMPT, params)
        text = bytes(i for i in rig.drain()[request, 0].token_ids if i < 256).decode("utf-8", "replace")
        parts = text.split("a")[1:]
        assert all("17!".startswith(part[:3]) for part in parts), text


def test_a_constraint_begins_after_a_text(rig: Rig) -> None:
    asked = StructuredSpec(kind="regex", source="[0-9]{3}", after="e")
    for seed in range(5):
        request = rig.add(PROMPT, SamplingParams(seed=seed, max_tokens=400, structured=asked))
        answer = rig.drain()[request, 0]
        _, found, rest = bytes(i for i in answer.token_ids if i < 256).partition(b"e")
        if found and answer.last.finish_reason == "stop":
            assert rest.isdigit()
            assert len(rest) == 3
