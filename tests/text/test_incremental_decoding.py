"""Tokens are decoded while they arrive."""

import random

import pytest
from hypothesis import given, settings, strategies as st
from tiny_tokenizers import KINDS, SPECIAL

from quire.text.tokenizer.decode import MAX_HELD, make_decoder
from quire.text.tokenizer.tokenizer import Tokenizer

# --- incremental decoding --------------------------------------------------------------------------


def pieces_of(tokenizer: Tokenizer, ids: list[int], cuts: random.Random, skip: bool, context: list[int]) -> list[str]:
    decoder = make_decoder(tokenizer, skip, context)
    pieces, at = [], 0
    while at < len(ids):
        count = cuts.choice([1, 1, 1, 2, 5])
        pieces.append(decoder.push(ids[at : at + count]))
        at += count
    return [*pieces, decoder.flush()]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_pieces_and_flush_are_the_decoding_of_all_ids(
    kind: str, data: st.DataObject, loaded: dict[str, Tokenizer]
) -> None:
    tokenizer = loaded[kind]
    text = data.draw(st.text(st.sampled_from("the foxb.é字🙂 '\n"), max_size=40))
    ids = tokenizer.encode(text, add_special_tokens=False)
    for special in data.draw(st.lists(st.sampled_from(SPECIAL), max_size=3)):
        ids.insert(data.draw(st.integers(0, len(ids))), tokenizer.vocab[special])
    ids = whole_characters(tokenizer, ids)
    skip = data.draw(st.booleans())
    pieces = pieces_of(tokenizer, ids, random.Random(data.draw(st.integers(0, 99))), skip, [])
    assert "".join(pieces) == tokenizer.decode(ids, skip)


def whole_characters(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """`ids` without special tokens that a random insertion put inside a character."""
    kept: list[int] = []
    for token_id in ids:
        before = b"".join(tokenizer.token_bytes(i) for i in kept)
        if token_id in tokenizer.special_ids and "\ufffd" in before.decode("utf-8", "replace"):
            continue
        kept.append(token_id)
    return kept


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_ids_of_a_byte_level_vocabulary_decode_in_pieces(data: st.DataObject, loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["byte_level"]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 5), max_size=60))
    skip = data.draw(st.booleans())
    pieces = pieces_of(tokenizer, ids, random.Random(1), skip, [])
    assert "".join(pieces) == tokenizer.decode(ids, skip)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "byte_level"])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_ids_decode_to_the_same_text_however_they_are_cut(
    kind: str, data: st.DataObject, loaded: dict[str, Tokenizer]
) -> None:
    tokenizer = loaded[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 5), max_size=60))
    together = "".join(pieces_of(tokenizer, ids, random.Random(1), True, []))
    assert together == "".join(pieces_of(tokenizer, ids, random.Random(2), True, []))
    intact = [i for i in ids if i >= tokenizer.vocab_size or not tokenizer.token_string(i).startswith("<0x")]  # type: ignore[union-attr]
    assert "".join(pieces_of(tokenizer, intact, random.Random(3), True, [])) == tokenizer.decode(intact)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "unigram"])
def test_a_character_of_several_tokens_comes_whole(kind: str, loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded[kind]
    decoder = make_decoder(tokenizer)
    pieces = [decoder.push([i]) for i in tokenizer.encode("b 🙃 b", add_special_tokens=False)]
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) + decoder.flush() == tokenizer.decode(tokenizer.encode("b 🙃 b", add_special_tokens=False))


@pytest.mark.parametrize("kind", ["byte_fallback", "unigram", "word_piece"])
def test_the_first_token_keeps_its_space_after_a_prompt(kind: str, loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded[kind]
    prompt, answer = "the", "fox"
    context = tokenizer.encode(prompt, add_special_tokens=False)
    ids = tokenizer.encode(f"{prompt} {answer}", add_special_tokens=False)[len(context) :]
    decoder = make_decoder(tokenizer, context=context)
    assert decoder.push(ids) + decoder.flush() == f" {answer}"
    assert make_decoder(tokenizer).push(ids).strip() == answer


def test_broken_bytes_are_held_back_only_for_a_while(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["byte_fallback"]
    lead = tokenizer.vocab["<0xE5>"]
    decoder = make_decoder(tokenizer)
    pieces = [decoder.push([lead]) for _ in range(MAX_HELD * 3)]
    assert "".join(pieces) == "\ufffd" * MAX_HELD * 3


def test_decoding_costs_the_same_late_in_a_text_as_early(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["byte_fallback"]
    seen: list[int] = []

    class Counting(Tokenizer):
        def decode(self, ids, *args, **kwargs):  # type: ignore[no-untyped-def]
            seen.append(len(ids))
            return super().decode(ids, *args, **kwargs)

    tokenizer.__class__, before = Counting, tokenizer.__class__
    try:
        decoder = make_decoder(tokenizer)
        for _ in range(300):
            decoder.push(tokenizer.encode("the fox 🙃", add_special_tokens=False))
    finally:
        tokenizer.__class__ = before
    assert max(seen) <= 2 * MAX_HELD + 1
