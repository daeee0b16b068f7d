"""Names and values that JSON writes with escapes: a back end writes them right, or refuses them."""

import json
from typing import Any

import bit_masks
import jsonschema
import numpy as np
import pytest
from grammar_texts import Compile, backend_of, compile_with

from quire.errors import UnsupportedConstraint
from quire.params.structured import StructuredSpec
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_testing import byte_tokenizer

VOCAB = 264
MODULES = ("llguidance_grammars", "xgrammar_grammars", "outlines_grammars", "lm_format_enforcer_grammars")
REFUSING = ("lm_format_enforcer_grammars", "outlines_grammars")
ODD = ['quo"te', "back\\slash", "a\tb", "a\nb", "a\x01b", "[(.*)]+", "a\\\"b'c", "naïve", "🙂 ☃"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(byte_tokenizer(tmp_path_factory.mktemp("bytes")))


@pytest.fixture(scope="module", params=MODULES)
def module(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def compiled(module: str, tokenizer: Tokenizer) -> Compile:
    return compile_with(backend_of(module), tokenizer, VOCAB)


def answer(compiled: Compile, schema: dict[str, Any]) -> Any:
    """A value that a back end's masks lead to."""
    matcher = compiled(StructuredSpec(kind="json_schema", source=json.dumps(schema))).start()
    rng, mask, ids = np.random.default_rng(0), bit_masks.empty(VOCAB), bytearray()
    while not matcher.is_accepting:
        matcher.fill(mask)
        ids.append(int(rng.choice(bit_masks.allowed(mask))))
        assert matcher.accept(ids[-1]), bytes(ids)
    return json.loads(ids.decode())


@pytest.mark.parametrize("text", ODD)
def test_names_and_values_are_written_as_json_writes_them(module: str, compiled: Compile, text: str) -> None:
    named = {"type": "object", "properties": {text: {"type": "boolean"}}, "required": [text]}
    for schema in (
        {**named, "additionalProperties": False},
        {"enum": [text]},
        {"const": text},
        {"enum": [{text: [text]}]},
        {"const": {"a": {text: 1}}},
    ):
        try:
            value = answer(compiled, schema)
        except UnsupportedConstraint:
            assert module in REFUSING
            continue
        jsonschema.validate(value, schema)


@pytest.mark.parametrize("text", ODD[:5])
def test_what_is_not_escaped_is_refused(tokenizer: Tokenizer, text: str) -> None:
    named = {"type": "object", "properties": {text: {"type": "boolean"}}, "required": [text]}
    compiled = compile_with(backend_of(REFUSING[0]), tokenizer, VOCAB)
    for schema in ({**named, "additionalProperties": False}, {"enum": [text]}, {"const": text}):
        with pytest.raises(UnsupportedConstraint, match="does not escape"):
            compiled(StructuredSpec(kind="json_schema", source=json.dumps(schema)))
