"""Prompts become token ids."""

from typing import Any

import pytest

from quire.errors import BadRequest
from quire.params.sampling import SamplingParams
from quire.text.inputs.inputs import InputLimits, to_prompt, with_bad_words
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import Prompt

# --- inputs ----------------------------------------------------------------------------------------


def test_every_form_of_a_prompt_gives_the_same_ids(spaced: Tokenizer) -> None:
    ids = tuple(spaced.encode("the fox"))
    assert ids[0] == spaced.bos_id
    assert (
        to_prompt("the fox", spaced)
        == to_prompt({"prompt": "the fox"}, spaced)
        == Prompt(token_ids=ids, text="the fox")
    )
    assert to_prompt(list(ids), spaced) == to_prompt({"prompt_token_ids": ids}, spaced) == Prompt(token_ids=ids)
    assert to_prompt({"prompt": "said", "prompt_token_ids": ids}, spaced) == Prompt(token_ids=ids, text="said")
    assert to_prompt("the fox", spaced, add_special_tokens=False).token_ids == ids[1:]


def test_a_text_that_begins_with_the_begin_token_gets_no_second_one(spaced: Tokenizer) -> None:
    assert to_prompt("<s>the fox", spaced).token_ids.count(spaced.bos_id or 0) == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "got NoneType"),
        (5, "got int"),
        (b"bytes", "got bytes"),
        ({}, "must be"),
        ({"text": "x"}, "keys"),
        ({"prompt": 5}, "must be a string"),
        ({"prompt": None}, "got nothing"),
        ({"prompt_token_ids": "x"}, "list of token ids"),
        ([], "must not be empty"),
        ("", "must not be empty"),
        ([1, -1], "at least 0"),
        ([1, True], "at least 0"),
        ([1, 2.0], "at least 0"),
        ([[1, 2]], "at least 0"),
        ([1, "x"], "at least 0"),
        ([10**30], "vocabulary ends at"),
        ([5000], "vocabulary ends at 329"),
        ([1] * 33, "maximum context length is 32"),
        ("word " * 50, "maximum context length"),
        ("x" * 10000, "has 10000 characters"),
        ("\ud800", "cannot be tokenized"),
    ],
)
def test_a_wrong_prompt_is_refused_with_a_sentence(value: Any, message: str, tokenizer: Tokenizer) -> None:
    limits = InputLimits(max_model_len=32, vocab_size=330)
    with pytest.raises(BadRequest, match=message) as caught:
        to_prompt(value, tokenizer, limits, add_special_tokens=False)
    assert caught.value.param == "prompt"


def test_a_prompt_is_cut_on_the_side_that_was_asked_for(tokenizer: Tokenizer) -> None:
    def cut(**limits: Any) -> tuple[int, ...]:
        return to_prompt([*range(10)], tokenizer, InputLimits(max_model_len=8, **limits)).token_ids

    assert cut(truncate_prompt_tokens=3) == (7, 8, 9)
    assert cut(truncate_prompt_tokens=3, truncation_side="right") == (0, 1, 2)
    assert cut(truncate_prompt_tokens=-1) == tuple(range(2, 10))
    long = "x" * 100_000 + "the end"
    assert to_prompt(long, tokenizer, InputLimits(truncate_prompt_tokens=2)).token_ids == tuple(
        tokenizer.encode(long)[-2:]
    )
    for wrong in (0, -2, True, "x", 1.5):
        with pytest.raises(BadRequest, match="truncate_prompt_tokens"):
            cut(truncate_prompt_tokens=wrong)
    with pytest.raises(BadRequest, match="above the maximum context length"):
        cut(truncate_prompt_tokens=9)
    with pytest.raises(BadRequest, match="left or right"):
        cut(truncation_side="middle")


def test_a_text_without_tokenizer_is_refused() -> None:
    with pytest.raises(BadRequest, match="no tokenizer"):
        to_prompt("hi", None)
    assert to_prompt([1], None).token_ids == (1,)


def test_bad_words_are_spelt_with_and_without_a_space(tokenizer: Tokenizer) -> None:
    params = with_bad_words(SamplingParams(bad_words=["fox", "🙂"]), tokenizer)
    spelt = {tokenizer.decode(ids) for ids in params.bad_word_ids}
    assert spelt == {"fox", " fox", "🙂", " 🙂"}
    assert with_bad_words(SamplingParams(), tokenizer).bad_word_ids == ()
