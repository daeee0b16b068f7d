"""The check of grammars for plugin authors says yes and no, each for the right reason."""

import json

import pytest

from quire.errors import BadRequest
from quire.hooks.registry import load
from quire.records import GrammarBackend
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_testing import byte_tokenizer, check_grammar_backend


class Digits:
    """A grammar of `length` digits; `fault` makes it wrong in one way."""

    def __init__(self, length: int, fault: str) -> None:
        self.length, self.fault, self.taken = length, fault, 0

    def compile(self, asked):
        source = asked.source
        if not source.isdigit() and self.fault != "accepts any source":
            raise BadRequest("not a number")
        return Digits(int(source) if source.isdigit() else 1, self.fault)

    def start(self):
        return self if self.fault == "shares its matcher" else Digits(self.length, self.fault)

    @property
    def is_terminated(self):
        return self.taken == self.length

    @property
    def is_accepting(self):
        return self.is_terminated and self.fault != "never complete"

    def fill(self, mask):
        if self.fault != "adds to the mask":
            mask.zero_()
        if not self.is_terminated:
            mask[1] = 0x01FF0000 if self.fault == "forgets nine" else 0x03FF0000

    def accept(self, token_id):
        fits = 48 <= token_id < 58 and not self.is_terminated
        self.taken += fits or self.fault == "moves when it refuses"
        return fits

    def rollback(self, count):
        self.taken -= count if self.fault != "rolls back one" else 1

    def jump_forward(self):
        return (50,) if self.fault == "forces where there is a choice" else ()


def digits(fault: str) -> GrammarBackend:
    return GrammarBackend("digits", frozenset({"digits"}), lambda context: Digits(0, fault))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(byte_tokenizer(tmp_path_factory.mktemp("bytes")))


def test_a_right_grammar_passes(tokenizer: Tokenizer) -> None:
    check_grammar_backend(digits(""), "digits", "7", tokenizer=tokenizer, wrong_source="x")


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("accepts any source", "must raise BadRequest for 'x'"),
        ("shares its matcher", "changed another"),
        ("never complete", "is_accepting must be True"),
        ("adds to the mask", "set every entry"),
        ("forgets nine", "the mask says False, accept says True"),
        ("moves when it refuses", "has another state|accept says"),
        ("rolls back one", "lead to another"),
        ("forces where there is a choice", "in jump_forward"),
    ],
)
def test_a_wrong_grammar_is_noticed(tokenizer: Tokenizer, fault: str, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_grammar_backend(digits(fault), "digits", "9", tokenizer=tokenizer, wrong_source="x")


def test_the_bundled_grammar_passes_with_texts_that_share_beginnings(tokenizer: Tokenizer) -> None:
    choice = load(["choice"]).by_hook("quire_grammar_backends")["choice"]
    check_grammar_backend(
        choice, "choice", json.dumps(["a", "ab", "abc", "Grüße"]), tokenizer=tokenizer, wrong_source="{}"
    )
