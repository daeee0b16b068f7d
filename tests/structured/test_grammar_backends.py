"""Each structured-output back end alone: what it takes it enforces, what it cannot enforce it refuses."""

import json
import re
from importlib import import_module
from pathlib import Path

import bit_masks
import json_schemas as schema_maker
import numpy as np
import pytest
import regexes as regex_maker
from grammar_texts import Compile, backend_of, compile_with
from jsonschema import Draft202012Validator as Validator

from quire.errors import BadRequest, UnsupportedConstraint
from quire.params.structured import StructuredSpec
from quire.records import Grammar, GrammarBackend
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_plugins.structured import json_schemas
from quire_testing import byte_tokenizer, check_grammar_backend

MODULES = {
    "guidance": "llguidance_grammars",
    "outlines": "outlines_grammars",
    "xgrammar": "xgrammar_grammars",
    "lm-format-enforcer": "lm_format_enforcer_grammars",
}
LEAST = {"guidance": (100, 60), "outlines": (40, 55), "xgrammar": (80, 35), "lm-format-enforcer": (9, 15)}
"""Of 110 schemas and 65 regexes, how many each takes at least."""
SCHEMAS = [*schema_maker.BY_HAND, *map(schema_maker.drawn, range(1000, 1110 - len(schema_maker.BY_HAND)))]
REGEXES = [*regex_maker.BY_HAND, *map(regex_maker.drawn, range(1000, 1025))]
VOCAB = 264


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(byte_tokenizer(tmp_path_factory.mktemp("bytes")))


@pytest.fixture(scope="module", params=MODULES)
def record(request: pytest.FixtureRequest) -> GrammarBackend:
    found = backend_of(MODULES[request.param])
    assert found.name == request.param
    return found


@pytest.fixture(scope="module")
def compiled(record: GrammarBackend, tokenizer: Tokenizer) -> Compile:
    return compile_with(record, tokenizer, VOCAB)


def walk(grammar: Grammar, seed: int, most: int = 1500) -> str | None:
    """A text that the masks lead to, None if it comes to no end."""
    rng, matcher, mask, ids = np.random.default_rng(seed), grammar.start(), bit_masks.empty(VOCAB), bytearray()
    while not matcher.is_terminated and len(ids) < most:
        if matcher.is_accepting and rng.random() < 0.3:
            break
        matcher.fill(mask)
        ids.append(int(rng.choice(bit_masks.allowed(mask))))
        assert matcher.accept(ids[-1]), (ids[-1], bytes(ids))
    return bytes(ids).decode() if matcher.is_accepting else None


def test_masks_and_matchers_agree(record: GrammarBackend, tokenizer: Tokenizer) -> None:
    schema = json.dumps(schema_maker.obj(kind={"enum": ["a", "b"]}, ok={"type": "boolean"}))
    check_grammar_backend(
        record, "json_schema", schema, tokenizer=tokenizer, wrong_source='{"type": ', walks=3, max_tokens=30
    )
    check_grammar_backend(record, "regex", "(?:ab|c)[0-9]{2}x?", tokenizer=tokenizer, wrong_source="(a", walks=3)
    check_grammar_backend(
        record, "choice", '["yes", "yesterday", "no"]', tokenizer=tokenizer, wrong_source="[]", walks=3
    )


def test_what_it_takes_of_schemas_it_enforces(record: GrammarBackend, compiled: Compile) -> None:
    taken, reasons = 0, []
    for number, schema in enumerate(SCHEMAS):
        tight = record.name != "lm-format-enforcer"
        try:
            grammar = compiled(StructuredSpec(kind="json_schema", source=json.dumps(schema), any_whitespace=not tight))
        except UnsupportedConstraint as error:
            reasons.append(error.message)
            continue
        taken += 1
        text = walk(grammar, number)
        if text is not None:
            Validator(schema, format_checker=Validator.FORMAT_CHECKER).validate(json.loads(text))
    assert taken >= LEAST[record.name][0]
    assert all(reason.endswith(".") for reason in reasons)


@pytest.mark.filterwarnings("ignore:Possible (set|nested):FutureWarning")
def test_what_it_takes_of_regexes_it_enforces(record: GrammarBackend, compiled: Compile) -> None:
    taken = 0
    for number, pattern in enumerate(REGEXES):
        try:
            grammar = compiled(StructuredSpec(kind="regex", source=pattern))
        except UnsupportedConstraint:
            continue
        taken += 1
        text = walk(grammar, number)
        assert re.fullmatch(pattern, str(text)), (pattern, text)
    assert taken >= LEAST[record.name][1]


@pytest.mark.parametrize("pattern", ["(?=a)b", "(a)\\1", "a\\bb", "(?<!x)y", "(?>a|b)c", "a++b"])
def test_what_only_python_can_match_is_refused(compiled: Compile, pattern: str) -> None:
    with pytest.raises(UnsupportedConstraint, match="which cannot be enforced"):
        compiled(StructuredSpec(kind="regex", source=pattern))


@pytest.mark.parametrize("word", schema_maker.REFUSED)
def test_constraints_that_no_back_end_enforces_are_refused(compiled: Compile, word: str) -> None:
    with pytest.raises(BadRequest):
        compiled(StructuredSpec(kind="json_schema", source=json.dumps(schema_maker.REFUSED[word])))


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (r'root ::= "\x41\u00e9\u0042\U0001F642"', "AéB🙂"),
        (r"root ::= [\x41-\x43] [\u00e0-\u00ff] [\u0061]", "Bêa"),
        (r'root ::= "\\x41" [\x2d\x5d] [^\u005c]', "\\x41]a"),
        (r'root ::= "\xe9\x22"', 'é"'),
    ],
)
def test_characters_by_number_are_read_in_ebnf(
    record: GrammarBackend, compiled: Compile, source: str, text: str
) -> None:
    if "grammar" not in record.kinds:
        pytest.skip(f"{record.name} takes no grammars")
    matcher = compiled(StructuredSpec(kind="grammar", source=source)).start()
    assert all(map(matcher.accept, text.encode()))
    assert matcher.is_accepting


@pytest.mark.parametrize("escape", [r"\ud83d", r"\U00110000"])
def test_a_number_of_no_character_is_refused(compiled: Compile, record: GrammarBackend, escape: str) -> None:
    if record.name != "guidance":
        pytest.skip("its library takes them, or no grammars")
    with pytest.raises(BadRequest, match="is no character"):
        compiled(StructuredSpec(kind="grammar", source=f'root ::= "{escape}"'))


@pytest.mark.parametrize("size", [264, 287, 288, 289])
def test_masks_hold_the_vocabulary_and_no_more(record: GrammarBackend, tokenizer: Tokenizer, size: int) -> None:
    matcher = compile_with(record, tokenizer, size)(StructuredSpec(kind="regex", source="[ab]c")).start()
    for token_id, wanted in ((ord("a"), b"ab"), (ord("c"), b"c")):
        mask = bit_masks.empty(size)
        matcher.fill(mask)
        assert bytes(bit_masks.allowed(mask)) == wanted
        assert matcher.accept(token_id)
    assert matcher.is_accepting


def test_plugins_import_their_library_only_when_built() -> None:
    for name in MODULES.values():
        text = Path(str(import_module(f"quire_plugins.structured.{name}").__file__)).read_text()
        assert not re.search(r"^(import|from) (llguidance|outlines_core|xgrammar|lmformatenforcer)", text, re.MULTILINE)


def test_a_library_that_is_not_installed_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_schemas, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedConstraint, match="pip install lm-format-enforcer"):
        json_schemas.check_installed("lmformatenforcer")
