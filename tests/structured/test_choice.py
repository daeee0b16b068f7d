import json

import bit_masks
import pytest
from bit_masks import empty
from hypothesis import given, strategies as st
from tokenizers import Tokenizer as Library, decoders, models, pre_tokenizers, trainers

from quire.errors import BadRequest
from quire.params.structured import StructuredSpec
from quire.records import Context
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_plugins.structured.choice import Choices


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(["yes no maybe positive negative neutral"] * 4, trainer)
    folder = tmp_path_factory.mktemp("tokenizer")
    library.save(str(folder / "tokenizer.json"))
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def choices(tokenizer):
    return Choices(Context(tokenizer=tokenizer))


def of(choices, source):
    return choices.compile(StructuredSpec(kind="choice", source=source))


def allowed(matcher, size):
    mask = empty(size)
    matcher.fill(mask)
    return bit_masks.allowed(mask)


def walk(choices, tokenizer, texts, pick):
    """Follow allowed tokens, choosing with `pick`, until nothing may follow."""
    matcher = of(choices, json.dumps(texts)).start()
    ids = []
    while not matcher.is_terminated:
        token = pick(allowed(matcher, tokenizer.vocab_size))
        assert matcher.accept(token)
        ids.append(token)
    assert matcher.is_accepting
    return tokenizer.decode(ids)


@pytest.mark.slow
@given(data=st.data(), texts=st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4))
def test_every_walk_over_allowed_tokens_ends_in_a_choice(choices, tokenizer, data, texts):
    texts = [text for text in texts if text.encode("utf-8", "ignore").decode() == text] or ["yes"]
    assert walk(choices, tokenizer, texts, lambda ids: data.draw(st.sampled_from(ids))) in texts


def test_allowed_are_exactly_the_tokens_that_accept_takes(choices, tokenizer):
    grammar = of(choices, '["positive", "negative", "neutral"]')
    may = set(allowed(grammar.start(), tokenizer.vocab_size))
    assert may
    for token in range(tokenizer.vocab_size):
        assert grammar.start().accept(token) == (token in may)


def test_one_choice_may_begin_another(choices, tokenizer):
    matcher = of(choices, '["no", "none"]').start()
    for token in tokenizer.encode("no", add_special_tokens=False):
        assert matcher.accept(token)
    assert matcher.is_accepting
    assert not matcher.is_terminated


def test_tokens_can_be_taken_back(choices, tokenizer):
    matcher = of(choices, '["yes", "no"]').start()
    before = allowed(matcher, tokenizer.vocab_size)
    matcher.accept(before[0])
    matcher.rollback(1)
    assert allowed(matcher, tokenizer.vocab_size) == before


@pytest.mark.parametrize(
    "source", ["[]", '""', "[1]", '[""]', "{}", json.dumps(["x"] * 2000), json.dumps(["x" * 5000])]
)
def test_what_is_no_list_of_texts_is_refused(choices, source):
    with pytest.raises(BadRequest, match="choice"):
        of(choices, source)
