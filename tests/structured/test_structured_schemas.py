"""A model of random weights at temperature 1: whatever it says and finishes has the form that was asked for."""

import json
import re
from collections.abc import Iterator

import json_schemas as schema_maker
import lark
import pytest
import regexes as regex_maker
from engine_rig import Rig
from jsonschema import Draft202012Validator as Validator
from structured_rig import answers, refusals, structured_rig

from quire.params.structured import StructuredSpec

SCHEMAS = [*schema_maker.BY_HAND, *map(schema_maker.drawn, range(300 - len(schema_maker.BY_HAND)))]
REGEXES = [*regex_maker.BY_HAND, *map(regex_maker.drawn, range(100 - len(regex_maker.BY_HAND)))]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with structured_rig(tmp_path_factory.mktemp("structured")) as made:
        yield made


def wrong(schema: schema_maker.Schema, text: str) -> str | None:
    """What is wrong with an answer."""
    try:
        Validator(schema, format_checker=Validator.FORMAT_CHECKER).validate(json.loads(text))
    except ValueError as error:
        return f"{text!r} is not JSON: {error}"
    except Exception as error:
        return f"{text!r} for {schema}: {error}"
    return None


@pytest.mark.slow
@pytest.mark.parametrize("tight", [True, False], ids=["tight", "with whitespace"])
def test_every_finished_answer_fits_its_schema(rig: Rig, tight: bool) -> None:
    asked = [
        StructuredSpec(kind="json_schema", source=json.dumps(schema), any_whitespace=not tight)
        for schema in (SCHEMAS if tight else SCHEMAS[::6])
    ]
    said = answers(rig, asked)
    schemas = [json.loads(each.source) for each in asked]
    found = [wrong(schema, text) for schema, text in zip(schemas, said, strict=True) if text is not None]
    assert not list(filter(None, found))
    assert len(found) >= len(asked) * (0.97 if tight else 0.8)


def test_json_object_is_an_object(rig: Rig) -> None:
    said = answers(rig, [StructuredSpec(kind="json_object", source="", any_whitespace=False)] * 20)
    finished = [json.loads(text) for text in said if text is not None]
    assert finished
    assert all(isinstance(value, dict) for value in finished)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Possible (set|nested):FutureWarning")
def test_every_answer_is_matched_whole_by_its_regex(rig: Rig) -> None:
    said = answers(rig, [StructuredSpec(kind="regex", source=pattern) for pattern in REGEXES])
    assert None not in said
    pairs = zip(REGEXES, said, strict=True)
    assert not [(pattern, text) for pattern, text in pairs if not re.fullmatch(pattern, str(text))]


def test_every_answer_is_parsed_by_its_grammar(rig: Rig) -> None:
    said = answers(rig, [StructuredSpec(kind="grammar", source=grammar) for grammar in regex_maker.GRAMMARS])
    assert sum(text is not None for text in said) >= 18
    for grammar, text in zip(regex_maker.GRAMMARS, said, strict=True):
        if text is not None:
            lark.Lark(grammar).parse(text)


def test_ebnf_is_read_as_xgrammar_and_llama_cpp_write_it(rig: Rig) -> None:
    said = answers(rig, [StructuredSpec(kind="grammar", source=grammar) for grammar in regex_maker.EBNF])
    assert re.fullmatch("x*", str(said[0])) or re.fullmatch("a(x*[0-9])|c", str(said[0]))
    assert re.fullmatch("[a-c]{1,2}(,[a-c]{1,2})?", str(said[1]))


def test_what_cannot_be_enforced_is_refused_with_the_reason(rig: Rig) -> None:
    asked = [
        StructuredSpec(kind="json_schema", source=json.dumps(schema), backend="guidance")
        for schema in schema_maker.REFUSED.values()
    ]
    for word, reason in zip(schema_maker.REFUSED, refusals(rig, asked), strict=True):
        assert word in reason, reason
