"""Texts, ids and pairs as prompts that are pooled: transformers is the oracle of cutting."""

import pytest
from tiny_tokenizers import save, word_piece
from tokenizers import processors
from transformers import AutoTokenizer

from quire.errors import BadRequest
from quire.text.inputs.inputs import InputLimits
from quire.text.inputs.pooling_inputs import pair_prompts, pooled_prompts
from quire.text.tokenizer.backends import SlowBackend
from quire.text.tokenizer.pair_truncation import PairTruncation
from quire.text.tokenizer.tokenizer import Tokenizer

BOS, EOS = ("<s>", 1), ("</s>", 2)
TEMPLATE = {"single": "<s> $A </s>", "pair": "<s> $A </s> $B:1 </s>:1"}
PROCESSORS = {
    "bert": lambda: processors.BertProcessing(EOS, BOS),
    "roberta": lambda: processors.RobertaProcessing(EOS, BOS),
    "template": lambda: processors.TemplateProcessing(**TEMPLATE, special_tokens=[BOS, EOS]),
}
PAIRS = [("the fox", "the quick brown fox jumps over the lazy dog"), ("fox fox", "don't wait"), ("jumps over", "fox")]


@pytest.fixture(scope="module", params=PROCESSORS)
def both(request, tmp_path_factory):
    """(ours, that of transformers)."""
    made = word_piece()
    made.post_processor = PROCESSORS[request.param]()
    folder = save(made, tmp_path_factory.mktemp(request.param))
    return Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)


def limits(count=None, side="right", **more):
    return InputLimits(**{"max_model_len": 64, "truncate_prompt_tokens": count, "truncation_side": side, **more})


def ids_of(prompts):
    return [list(prompt.token_ids) for prompt in prompts]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("count", [5, 6, 7, 8, 9, 12, 64])
def test_pairs_are_cut_as_transformers_cuts_them(both, count, side):
    ours, theirs = both
    theirs.truncation_side = side
    found = pair_prompts(PAIRS, ours, limits(count, side), token_types=True)
    for prompt, (first, second) in zip(found, PAIRS, strict=True):
        expected = theirs(first, second, truncation=True, max_length=count, return_token_type_ids=True)
        assert list(prompt.token_ids) == expected["input_ids"]
        assert list(prompt.token_types) == expected["token_type_ids"]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("count", [None, 3, 4, 7, -1])
def test_texts_keep_their_special_tokens_when_they_are_cut(both, count, side):
    ours, theirs = both
    theirs.truncation_side = side
    texts = [second for _, second in PAIRS]
    found = ids_of(pooled_prompts(texts, ours, limits(count, side)))
    most = 64 if count in (None, -1) else count
    assert found == theirs(texts, truncation=True, max_length=most)["input_ids"]


def test_without_special_tokens_nothing_is_kept_for_them(both):
    ours, theirs = both
    ids = theirs("the quick brown fox", add_special_tokens=False)["input_ids"]
    assert ids_of(pooled_prompts(["the quick brown fox"], ours, limits(3), add_special_tokens=False)) == [ids[:3]]


def test_either_text_of_a_pair_and_a_text_alone_have_their_own_bounds(both):
    ours, theirs = both
    first, second = "quick brown fox", "the lazy dog jumps"
    cut = [theirs.decode(theirs(text, add_special_tokens=False)["input_ids"][:2]) for text in (first, second)]
    found = pair_prompts([(first, second)], ours, limits(), max_first_tokens=2, max_second_tokens=2)
    assert ids_of(found) == [theirs(*cut)["input_ids"]]
    assert found[0].token_types == ()
    assert ids_of(pooled_prompts([first], ours, limits(), max_text_tokens=2)) == [theirs(cut[0])["input_ids"]]


def test_a_library_without_places_of_tokens_cuts_the_same_way(both):
    ours, theirs = both

    class Slow:
        """What SlowLibrary asks of a tokenizer written in Python, from the one in Rust."""

        def encode(self, text, add_special_tokens):
            return theirs.encode(text, add_special_tokens=add_special_tokens)

        def num_special_tokens_to_add(self, pair):
            return theirs.num_special_tokens_to_add(pair)

        def build_inputs_with_special_tokens(self, *parts):
            return self._built(parts)["input_ids"]

        def create_token_type_ids_from_sequences(self, *parts):
            return self._built(parts)["token_type_ids"]

        def _built(self, parts):
            return theirs(*(theirs.decode(part) for part in parts), return_token_type_ids=True)

    slow, pairs = SlowBackend(Slow()), [("quick fox", "the lazy dog jumps")]
    for room in (PairTruncation(), PairTruncation(whole=7), PairTruncation(first=1, second=2, side="left")):
        assert slow.encode_truncated(pairs, room) == ours.encode_truncated(pairs, room)
        assert slow.encode_truncated(["quick fox"], room) == ours.encode_truncated(["quick fox"], room)


@pytest.mark.parametrize(
    ("values", "more", "message"),
    [
        (["fox", []], {}, r"Item 1 of `input`: `input` must not be empty"),
        ([[]], {}, r"^`input` must not be empty"),
        ([[3], [5, 99]], {"vocab_size": 9}, "Item 1 of `input`.*token id 99, but the vocabulary ends at 8"),
        (["fox " * 70], {}, "maximum context length is 64 tokens, but the prompt has 7"),
        ([[1] * 65], {}, "maximum context length is 64 tokens, but the prompt has 65"),
        (["x" * 10**6], {}, "at most 16384 are accepted"),
        (["fox"], {"count": 65}, "above the maximum context length"),
        (["the lazy fox"], {"count": 2}, "must be above 2 here"),
        (["\ud800"], {}, "cannot be tokenized"),
    ],
)
def test_what_cannot_be_pooled_is_refused_with_the_reason(both, values, more, message):
    with pytest.raises(BadRequest, match=message):
        pooled_prompts(values, both[0], limits(**{"param": "input", **more}))


def test_ids_are_cut_on_the_side_that_was_asked_for(both):
    assert ids_of(pooled_prompts([[1, 2, 3, 4]], both[0], limits(2))) == [[1, 2]]
    assert ids_of(pooled_prompts([[1, 2, 3, 4]], both[0], limits(2, "left"))) == [[3, 4]]


def test_the_begin_of_text_token_is_not_doubled(both):
    ours = both[0]
    (prompt,) = pooled_prompts(["<s>fox"], ours, limits())
    assert prompt.token_ids.count(ours.bos_id) == 1
