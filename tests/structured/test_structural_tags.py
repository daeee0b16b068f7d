"""Structural tags of the kind `format`: what both back ends that take them enforce, and what one of them refuses."""

import json

import pytest
from grammar_texts import compiled, keeps_to
from structured_rig import PROMPT, answers, refusals, structured_rig

from quire.errors import BadRequest, UnsupportedConstraint
from quire.params.sampling import SamplingParams
from quire.params.structured import StructuredSpec
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_plugins.structured import llguidance_grammars, xgrammar_grammars
from quire_testing import byte_tokenizer

BACKENDS = {
    "guidance": llguidance_grammars.quire_grammar_backends,
    "xgrammar": xgrammar_grammars.quire_grammar_backends,
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer.load(byte_tokenizer(tmp_path_factory.mktemp("bytes")))


def text(value):
    return {"type": "const_string", "value": value}


def regex(pattern):
    return {"type": "regex", "pattern": pattern}


def tag(begin, content, end):
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def some(kind, *elements, **more):
    return {"type": kind, "elements": list(elements), **more}


ANY = {"type": "any_text"}
NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}
OBJECT = {
    "type": "json_schema",
    "json_schema": {"type": "object", "properties": {"a": {"enum": ["x", "é"]}}, "additionalProperties": False},
}
TAGS = [tag("<f>", NUMBER, "</f>"), tag("<fg>", OBJECT, "</fg>")]


def triggered(**more):
    return {"type": "triggered_tags", "triggers": ["<f"], "tags": TAGS, **more}


def separated(**more):
    return {"type": "tags_with_separator", "separator": ", ", "tags": TAGS, **more}


def repeated(kind, content, **more):
    return {"type": kind, "content": content, **more}


ONE, TWO = "<f>1</f>", '<fg>{"a": "é"}</fg>'
TEXTS = {
    "a constant": (text('say "a/b"'), ['say "a/b"'], ["", "say", 'say "a/b" ']),
    "JSON": (OBJECT, ["{}", '{"a": "x"}'], ["", "{", '{"b": 1}', '{"a": "y"}']),
    "any JSON": ({"type": "json_schema", "json_schema": True}, ["5", "[]"], ["", "x"]),
    "a regex": (regex("a+/b"), ["a/b", "aaa/b"], ["/b", "a/bb"]),
    "free text": (ANY, ["", "é < {"], []),
    "one after the other": (some("sequence", text("a"), NUMBER, text("z")), ["a1z", "a23z"], ["a1", "1z", "az"]),
    "one or the other": (some("or", text("a"), NUMBER, regex("b+")), ["a", "7", "bb"], ["", "a7", "x"]),
    "a tag with free text": (tag("<a>", ANY, "</a>"), ["<a></a>", "<a>b < </c></a>"], ["<a>", "<a></a> ", "</a>"]),
    "a tag with several ends": (tag("<", ANY, ["/>", "!"]), ["<a/>", "<!"], ["<a", "<a/>b!"]),
    "a tag with a regex": (tag("<a>", regex(".*"), "</a>"), ["<a>b</a>", "<a></a>c</a>"], ["<a>b", "<a>b</a>c"]),
    "a tag in a tag": (tag("<a>", tag("<b>", NUMBER, "</b>"), "</a>"), ["<a><b>1</b></a>"], ["<a>1</a>"]),
    "a tag that a text ends": (some("sequence", text("x"), tag("<a>", ANY, "</a>")), ["x<a>y</a>"], ["x<a>y"]),
    "tags within text": (triggered(), ["", "hi <", ONE, f"a{ONE}b{TWO}c"], ["<f", "<f>x</f>", "<fx>", f"{ONE}<fg>1"]),
    "one tag at most": (triggered(stop_after_first=True), ["hi", f"hi {TWO}"], [f"{ONE} ", ONE + TWO]),
    "at least one tag": (triggered(at_least_one=True), [ONE, f"{TWO} x {ONE}"], ["", "hi", f"hi {ONE}"]),
    "exactly one tag": (triggered(at_least_one=True, stop_after_first=True), [ONE, TWO], ["", f"{ONE} ", f" {ONE}"]),
    "tags within a tag": (tag("<t>", triggered(), "</t>"), ["<t></t>", f"<t>a{ONE}</t>"], ["<t><f></t>", f"<t>{ONE}"]),
    "tags with a separator": (separated(), ["", ONE, f"{ONE}, {TWO}"], [f"{ONE}, ", f"{ONE}{TWO}", "x"]),
    "some tags": (separated(at_least_one=True), [ONE, f"{ONE}, {ONE}, {TWO}"], ["", f" {ONE}"]),
    "one tag or none": (separated(stop_after_first=True), ["", TWO], [f"{ONE}, {TWO}"]),
    "perhaps": (repeated("optional", tag("<", NUMBER, ">")), ["", "<1>"], ["<1><2>"]),
    "as often as wanted": (repeated("star", tag("<", NUMBER, ">")), ["", "<1>", "<1><22><3>"], ["<"]),
    "once or more": (repeated("plus", tag("<", NUMBER, ">")), ["<1>", "<1><2>"], [""]),
    "so often": (repeated("repeat", tag("<", NUMBER, ">"), min=1, max=2), ["<1>", "<1><2>"], ["", "<1><2><3>"]),
    "regexes so often": (repeated("repeat", regex("[ab]"), min=2, max=-1), ["ab", "aba"], ["a", "abc"]),
}
"""Formats, texts that have them, and texts that do not."""

XGRAMMAR_ONLY = {
    "text before a tag": (some("sequence", ANY, tag("<a>", NUMBER, "</a>")), ["hi <a>1</a>"], ["hi"]),
    "a regex before JSON": (some("sequence", regex("[ab]+"), NUMBER), ["ab1"], ["ab", "1"]),
    "text without a word": ({"type": "any_text", "excludes": ["bad"]}, ["good"], ["so bad"]),
    "text that ends soon": ({"type": "any_text", "max_chars": 3}, ["abc"], ["abcd"]),
    "a grammar": ({"type": "grammar", "grammar": 'root ::= "a" | "b"'}, ["a", "b"], ["c"]),
    "another style": (
        {"type": "json_schema", "json_schema": OBJECT["json_schema"], "style": "qwen_xml"},
        ["<parameter=a>x</parameter>"],
        ['{"a": "x"}'],
    ),
    "a dispatch": ({"type": "dispatch", "rules": [["<n>", NUMBER]]}, ["a<n>1"], ["a<n>x"]),
}
"""What guidance refuses."""


def asked_for(form, **more):
    return StructuredSpec(kind="structural_tag", source=json.dumps({"type": "structural_tag", "format": form}), **more)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", TEXTS)
def test_both_back_ends_enforce_the_same(tokenizer, name, backend) -> None:
    form, right, wrong = TEXTS[name]
    grammar = compiled(asked_for(form), tokenizer, BACKENDS[backend])
    for each in right:
        assert keeps_to(grammar, tokenizer, each), each
    for each in wrong:
        assert not keeps_to(grammar, tokenizer, each), each


@pytest.mark.parametrize("name", XGRAMMAR_ONLY)
def test_what_one_cannot_enforce_it_refuses_and_the_other_does(tokenizer, name) -> None:
    form, right, wrong = XGRAMMAR_ONLY[name]
    with pytest.raises(UnsupportedConstraint, match=r"^it .*\.$"):
        compiled(asked_for(form), tokenizer, BACKENDS["guidance"])
    grammar = compiled(asked_for(form), tokenizer, BACKENDS["xgrammar"])
    assert [keeps_to(grammar, tokenizer, each) for each in (*right, *wrong)] == [True] * len(right) + [False] * len(
        wrong
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_older_form_is_the_same_as_triggered_tags(tokenizer, backend) -> None:
    schemas = [TAGS[0]["content"]["json_schema"], json.dumps(TAGS[1]["content"]["json_schema"])]
    structures = [{"begin": t["begin"], "schema": s, "end": t["end"]} for t, s in zip(TAGS, schemas, strict=True)]
    source = json.dumps({"structures": structures, "triggers": ["<f"]})
    grammar = compiled(StructuredSpec(kind="structural_tag", source=source), tokenizer, BACKENDS[backend])
    _, right, wrong = TEXTS["tags within text"]
    assert all(keeps_to(grammar, tokenizer, each) for each in right)
    assert not any(keeps_to(grammar, tokenizer, each) for each in wrong)


@pytest.mark.parametrize("backend", BACKENDS)
def test_schemas_within_are_refused_and_written_as_elsewhere(tokenizer, backend) -> None:
    unique = {"type": "json_schema", "json_schema": {"type": "array", "items": {"enum": [1]}, "uniqueItems": True}}
    with pytest.raises(UnsupportedConstraint, match="uniqueItems"):
        compiled(asked_for(tag("<a>", unique, "</a>")), tokenizer, BACKENDS[backend])
    tight = asked_for(OBJECT, any_whitespace=False)
    if backend == "guidance":
        assert not keeps_to(compiled(tight, tokenizer), tokenizer, '{"a":  "x"}')
    else:
        with pytest.raises(UnsupportedConstraint, match="white space"):
            compiled(tight, tokenizer, BACKENDS[backend])
    with pytest.raises(UnsupportedConstraint, match="look-around"):
        compiled(asked_for(regex("(?=a)b")), tokenizer, BACKENDS[backend])


def test_a_special_token_is_one_or_refused(tokenizer) -> None:
    form = tag("<|user|>", ANY, "<|system|>")
    grammar = compiled(asked_for(form), tokenizer, BACKENDS["guidance"])
    assert len(tokenizer.encode("<|user|>", add_special_tokens=False)) == 1
    assert keeps_to(grammar, tokenizer, "<|user|>hm < é<|system|>")
    assert not keeps_to(grammar, tokenizer, "<|user|>hm")
    with pytest.raises(UnsupportedConstraint, match="special tokens"):
        compiled(asked_for(form), tokenizer, BACKENDS["xgrammar"])


@pytest.mark.slow
def test_auto_tries_the_other_back_end_and_reports_the_reasons_of_both(tmp_path) -> None:
    form, *_ = XGRAMMAR_ONLY["a regex before JSON"]
    with structured_rig(tmp_path) as rig:
        (said,) = answers(
            rig, [asked_for(some("sequence", regex("[ab]{2}"), {**NUMBER, "json_schema": {"enum": [7]}}))]
        )
        assert said in ("aa7", "ab7", "ba7", "bb7")
        with pytest.raises(BadRequest, match="'outlines' is not one that constrains the output by 'structural_tag'"):
            rig.add(PROMPT, SamplingParams(structured=asked_for(form, backend="outlines")))
        (reason,) = refusals(rig, [asked_for(form, backend="guidance")])
        assert reason == "guidance: it enforces a regex only at the end of a tag or of the answer."


DEEP = text("a")
for _ in range(70):
    DEEP = repeated("star", DEEP)

WRONG = {
    "no object": 5,
    "no type": {},
    "a type nobody knows": {"type": "words"},
    "no value": {"type": "const_string"},
    "a list that is empty": some("or"),
    "no list": {"type": "sequence", "elements": 5},
    "no content": {"type": "star"},
    "an end that is none": {"type": "tag", "begin": "a", "content": ANY, "end": 5},
    "ends that are none": {"type": "tag", "begin": "a", "content": ANY, "end": []},
    "a trigger that begins nothing": {**triggered(), "triggers": ["<g"]},
    "no triggers": {**triggered(), "triggers": []},
    "tags that are none": {**separated(), "tags": [ANY]},
    "counts out of order": repeated("repeat", NUMBER, min=2, max=1),
    "no counts": repeated("repeat", NUMBER, min=True, max="1"),
    "a wrong regex": regex("(a"),
    "too deep": DEEP,
    "too many": some("or", *[text(str(i)) for i in range(3000)]),
    "too often": repeated("repeat", NUMBER, min=0, max=10**9),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_format_is_refused(tokenizer, name) -> None:
    with pytest.raises(BadRequest):
        compiled(asked_for(WRONG[name]), tokenizer, BACKENDS["guidance"])
