"""White space in constrained JSON: as much as people and `json.dumps` write, and no more, by every back end."""

import json
from typing import Any

import bit_masks
import jsonschema
import numpy as np
import pytest
from grammar_texts import Compile, backend_of, compile_with

from quire.params.structured import StructuredSpec
from quire.records import Grammar, GrammarBackend
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_testing import byte_tokenizer

VOCAB = 264
MODULES = ("llguidance_grammars", "xgrammar_grammars", "outlines_grammars", "lm_format_enforcer_grammars")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "boolean"}}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
VALUE = {"a": 1, "b": [True, False]}
TAG = {"structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}], "triggers": ["<a"]}
RUNS = ['{"a":  1,', '{"a":\n\n1,', '{"a":\r1,', "{\n" + " " * 40 + '"a":', '{"a":1 \n,', '{"a":1}\n\n\n']


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(byte_tokenizer(tmp_path_factory.mktemp("bytes")))


@pytest.fixture(scope="module", params=MODULES)
def record(request: pytest.FixtureRequest) -> GrammarBackend:
    return backend_of(request.param)


@pytest.fixture(scope="module")
def compiled(record: GrammarBackend, tokenizer: Tokenizer) -> Compile:
    return compile_with(record, tokenizer, VOCAB)


def follows(grammar: Grammar, text: str) -> bool:
    """Whether a grammar lets a text begin so."""
    matcher = grammar.start()
    return all(map(matcher.accept, text.encode()))


def schema(**settings: Any) -> StructuredSpec:
    return StructuredSpec(kind="json_schema", source=json.dumps(SCHEMA), **settings)


def longest_run(grammar: Grammar, prefix: str) -> int:
    """White space that may follow a text, one character after another, whichever of it is taken first."""
    matcher, mask = grammar.start(), bit_masks.empty(VOCAB)
    assert all(map(matcher.accept, prefix.encode()))
    for length in range(200):
        matcher.fill(mask)
        spaces = sorted(set(bit_masks.allowed(mask)) & set(b"\n\r\t "))
        if not spaces:
            return length
        matcher.accept(spaces[0])
    raise AssertionError("there is no end of white space")


def test_a_space_or_an_indented_line_may_stand_between_tokens(record: GrammarBackend, compiled: Compile) -> None:
    grammar = compiled(schema())
    assert follows(grammar, json.dumps(VALUE))
    assert follows(grammar, json.dumps(VALUE, separators=(",", ":")))
    if record.name != "lm-format-enforcer":  # which offers printable characters only
        assert follows(grammar, json.dumps(VALUE, indent=2))
        assert follows(grammar, json.dumps(VALUE, indent=4))


def test_no_more_white_space_than_that_is_allowed(compiled: Compile) -> None:
    grammar = compiled(schema())
    assert not [text for text in RUNS if follows(grammar, text)]
    assert all(longest_run(grammar, text) <= 33 for text in ("{", '{"a"', '{"a":', '{"a":1', '{"a":1,'))


def test_json_objects_and_tags_are_bounded_alike(record: GrammarBackend, compiled: Compile) -> None:
    if "structural_tag" not in record.kinds:
        pytest.skip(f"{record.name} has no structural tags")
    for asked, before in ((StructuredSpec(kind="json_object", source=""), ""), (_tag(), "hm  \n\n<a>")):
        grammar = compiled(asked)
        assert follows(grammar, before + json.dumps(VALUE, indent=2))
        assert not follows(grammar, before + '{"a":  1')
        assert longest_run(grammar, before + '{"a":') <= 33


def _tag() -> StructuredSpec:
    return StructuredSpec(kind="structural_tag", source=json.dumps(TAG))


def test_texts_of_a_tag_keep_their_white_space(record: GrammarBackend, compiled: Compile) -> None:
    if "structural_tag" not in record.kinds:
        pytest.skip(f"{record.name} has no structural tags")
    end = "</a>[ \n\r\t]*"
    tag = {"structures": [{"begin": "<a>", "schema": SCHEMA, "end": end}], "triggers": ["<a"]}
    grammar = compiled(StructuredSpec(kind="structural_tag", source=json.dumps(tag)))
    assert follows(grammar, f"<a>{json.dumps(VALUE)}{end} and on")


def test_what_clients_write_of_white_space_stays_as_it_is(record: GrammarBackend, compiled: Compile) -> None:
    if record.name != "xgrammar":
        pytest.skip("only this library's grammars are written anew")
    parts = [{"type": "regex", "pattern": "a[ \n\r\t]*b"}, {"type": "grammar", "grammar": 'root ::= [ \\n\\r\\t]* "c"'}]
    form = {"type": "sequence", "elements": [*parts, {"type": "json_schema", "json_schema": SCHEMA}]}
    grammar = compiled(StructuredSpec(kind="structural_tag", source=json.dumps({"format": form})))
    assert follows(grammar, "a \n\n\t  b\r\r  c" + json.dumps(VALUE, indent=2))
    assert not follows(grammar, 'abc{"a":  1')


def test_constants_keep_their_white_space(compiled: Compile) -> None:
    source = json.dumps({"enum": ["two  spaces   here"]})
    assert follows(compiled(StructuredSpec(kind="json_schema", source=source)), '"two  spaces   here"')


def test_no_white_space_is_left_where_it_is_switched_off(record: GrammarBackend, compiled: Compile) -> None:
    if record.name == "lm-format-enforcer":
        pytest.skip("its whitespace is not configurable")
    grammar = compiled(schema(any_whitespace=False))
    assert longest_run(grammar, "{") == 0
    assert longest_run(grammar, '{"a":1,') == 0


def test_random_walks_end_as_json_that_fits(compiled: Compile) -> None:
    properties = {"kind": {"enum": ["a", "b"]}, "list": SCHEMA["properties"]["b"]}
    schema = {**SCHEMA, "properties": properties, "required": ["kind", "list"]}
    grammar = compiled(StructuredSpec(kind="json_schema", source=json.dumps(schema)))
    for seed in range(20):
        rng, matcher, mask, ids = np.random.default_rng(seed), grammar.start(), bit_masks.empty(VOCAB), bytearray()
        while not matcher.is_accepting and len(ids) < 2000:
            matcher.fill(mask)
            ids.append(int(rng.choice(bit_masks.allowed(mask))))
            assert matcher.accept(ids[-1])
        jsonschema.validate(json.loads(ids.decode()), schema)
