"""Long texts to ids, piece by piece: the ids of the whole, within bounds, given up when nothing needs them."""

import random

import pytest
import tiny_tokenizers
from fake_client import PretendClient, http, pretend_app
from tokenizers import Tokenizer as Library, models, normalizers, pre_tokenizers, trainers

from quire.errors import BadRequest
from quire.settings.server_config import ServerConfig
from quire.text.inputs.inputs import InputLimits, to_prompt
from quire.text.inputs.pooling_inputs import pair_prompts, pooled_prompts
from quire.text.tokenizer import long_texts
from quire.text.tokenizer.long_texts import LONG_TEXT, TokenizationCancelled, encode_blocks
from quire.text.tokenizer.tokenizer import Tokenizer

WORDS = ("the", "quick", "brown", "fox", "don't", "stop", "while", "it", "rains", "café", "naïve", "東京", "12345")
BLOCK_CHARS = 2 * long_texts.OVERLAP


def prose(seed, length):
    chance = random.Random(seed)
    return "".join(chance.choice([*WORDS, "\n\n", "  ", ", "]) + " " for _ in range(length // 4))[:length]


def byte_level():
    made = Library(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [prose(0, 5000)], trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    return made


def unigram():
    made = Library(models.Unigram())
    made.normalizer, made.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    made.train_from_iterator([prose(0, 5000)], trainer)
    return made


def word_piece():
    made = Library(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    made.train_from_iterator(
        [prose(0, 5000)], trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]"], show_progress=False)
    )
    return made


TEXTS = {
    "prose": prose(1, 30_000),
    "one word": "a" * 30_000,
    "spaces": " " * 30_000,
    "two letters": "ab " * 10_000,
    "several bytes a letter": "東京é🙂" * 7_000,
    "runs": "".join(letter * (97 * i % 900) for i, letter in enumerate("ab \n東🙂-" * 9)),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("make", [byte_level, unigram, word_piece, tiny_tokenizers.byte_fallback])
def test_the_ids_of_pieces_are_those_of_the_whole(make, text):
    library = make()
    found = list(encode_blocks(library, text, BLOCK_CHARS))
    assert [i for piece in found for i in piece.ids] == library.encode(text, add_special_tokens=False).ids
    assert found[-1].end == len(text)


def test_a_long_text_is_read_in_pieces():
    assert len(list(encode_blocks(byte_level(), TEXTS["prose"], BLOCK_CHARS))) > 4


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    library = tiny_tokenizers.byte_level()
    return Tokenizer.load(tiny_tokenizers.save(library, tmp_path_factory.mktemp("long")))


LONG = "ab " * LONG_TEXT


def test_encoding_a_long_text_gives_the_same_as_at_once(tokenizer):
    assert tokenizer.encode_long(LONG) == tokenizer.encode(LONG)


def test_encoding_ends_when_there_are_more_ids_than_can_be_used(tokenizer):
    assert 100 < len(tokenizer.encode_long(LONG, max_tokens=100)) < len(tokenizer.encode(LONG)) // 2


def test_encoding_ends_when_nothing_needs_it(tokenizer):
    with pytest.raises(TokenizationCancelled):
        tokenizer.encode_long(LONG, should_continue=lambda: False)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_long_text_that_may_be_cut_keeps_the_ids_it_would_keep_of_the_whole(tokenizer, side):
    whole = tokenizer.encode(LONG)
    limits = InputLimits(max_model_len=10_000, truncate_prompt_tokens=9_000, truncation_side=side)
    kept = to_prompt(LONG, tokenizer, limits, add_special_tokens=False).token_ids
    assert list(kept) == (whole[-9_000:] if side == "left" else whole[:9_000])


def test_a_text_of_more_characters_than_allowed_is_refused_before_it_is_tokenized(tokenizer):
    with pytest.raises(BadRequest, match="--max-text-chars"):
        to_prompt("a" * 101, tokenizer, InputLimits(max_chars=100))


@pytest.mark.parametrize("pair", [False, True])
def test_many_texts_are_given_up_together(tokenizer, pair):
    limits = InputLimits(should_continue=lambda: False)
    with pytest.raises(TokenizationCancelled):
        pair_prompts([("a", "b")], tokenizer, limits) if pair else pooled_prompts(["a", "b"], tokenizer, limits)


CONFIG = ServerConfig(max_text_chars=5000)
TOO_LONG = "a" * 5001


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": TOO_LONG}),
        ("/tokenize", {"messages": [{"role": "user", "content": TOO_LONG}]}),
        ("/v1/completions", {"prompt": TOO_LONG}),
        ("/v1/completions", {"prompt": TOO_LONG, "truncate_prompt_tokens": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": TOO_LONG}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "documents": [{"text": TOO_LONG}]}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"x": [TOO_LONG]}},
        ),
        ("/generate", {"prompt": TOO_LONG}),
    ],
)
async def test_every_route_bounds_the_text_it_tokenizes(tmp_path_factory, path, body):
    app = pretend_app(tmp_path_factory.mktemp("tokenizer"), PretendClient(), CONFIG)
    async with http(app) as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == 400
    assert "--max-text-chars" in answer.json()["error"]["message"]


async def test_tokenize_writes_many_ids_as_it_writes_few(tmp_path_factory):
    app = pretend_app(tmp_path_factory.mktemp("tokenizer"), PretendClient())
    text = "ab" * 50_000
    async with http(app) as client:
        found = (await client.post("/tokenize", json={"prompt": text, "return_token_strs": True})).json()
        back = (await client.post("/detokenize", json={"tokens": found["tokens"]})).json()
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert back["prompt"] == text


def test_a_long_stretch_that_cannot_be_divided_is_refused(monkeypatch):
    monkeypatch.setattr(long_texts, "MAX_BLOCK_CHARS", 4 * BLOCK_CHARS)
    with pytest.raises(long_texts.Indivisible, match="32768 characters in a row"):
        list(encode_blocks(word_piece(), "a" * 20 * BLOCK_CHARS, BLOCK_CHARS))


def test_the_refusal_of_such_a_text_is_a_bad_request(tokenizer, monkeypatch):
    def refuse(text):
        raise long_texts.Indivisible("9 characters in a row have no place where they can be divided")

    monkeypatch.setattr(
        tokenizer, "_backend", type("L", (), {"encode_blocks": staticmethod(refuse), "surrounding_tokens": ([], [])})()
    )
    with pytest.raises(BadRequest, match="9 characters in a row"):
        tokenizer.encode_long(LONG)
