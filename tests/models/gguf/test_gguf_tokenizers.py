"""Tokenizers from the metadata of GGUF files, against the tokenizers that the metadata describes."""

from __future__ import annotations

import importlib
import inspect
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from quire.errors import CheckpointError
from quire.text.tokenizer.tokenizer import Tokenizer as QuireTokenizer
from quire_models.gguf.file.metadata import Metadata
from quire_models.gguf.text.splits import SPLITS
from quire_models.gguf.text.tokenizer import tokenizer, tokenizer_config
from quire_models.gguf.text.vocabulary import Vocabulary

TEXTS = [
    "",
    " ",
    "Hello world",
    "  leading and  double   spaces ",
    " tab\tand\nnewline\n\n\n\ntext\r\n",
    "naïve café über straße — ¿qué? 你好世界 こんにちは 🙂👩‍👩‍👧 नमस्ते",
    "def f(x):\n    return x + 1\n\n\t# tabs  and   spaces",
    "1234567890 3.14159 0xdeadbeef 12 345",
    "'s don't WON'T it's I'LL",
    "\u2581weird\u2581meta",
    "\x01\u200b\ufeff zero width",
    "العربية עברית ไทย ภาษา ﬁ ﷺ 𝒜𝓁𝑔",
    "a" * 300,
    " " * 40 + "x",
    "<s>[INST] hi </s> <|im_start|>user\n",
]
MODULES = ("json", "textwrap", "string", "random", "statistics", "heapq")


def docstrings() -> list[str]:
    """Python's own documentation and code: what the tokenizers are trained on and compared on."""
    return [inspect.getsource(importlib.import_module(name))[:9000] for name in MODULES]


class FakeFile:
    """A GGUF file that has only metadata."""

    path = Path("model.gguf")

    def __init__(self, **metadata: Any) -> None:
        self.metadata = {"general.architecture": "llama", "llama.context_length": 128}
        self.metadata |= {f"tokenizer.{key.replace('__', '.')}": value for key, value in metadata.items()}


def vocabulary(**metadata: Any) -> Vocabulary:
    return Vocabulary.read(Metadata(FakeFile(**metadata)))  # type: ignore[arg-type]


def made(**metadata: Any) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(tokenizer(vocabulary(**metadata))))


def ids(one: Tokenizer, text: str) -> list[int]:
    found: list[int] = one.encode(text, add_special_tokens=False).ids
    return found


@pytest.fixture(scope="module")
def pieces() -> sentencepiece.SentencePieceProcessor:
    """SentencePiece's own model of pairs, with bytes for unknown characters and tokens of spaces and newlines."""
    stream = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in docstrings() for line in text.split("\n")]),
        model_writer=stream,
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        user_defined_symbols=["\n", "\n\n", "\u2581\u2581", "\u2581\u2581\u2581\u2581", "<mask>"],
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=stream.getvalue())


def of_pieces(pieces: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    """Metadata as the converter writes it: user-defined pieces have spaces instead of marks."""
    kinds, tokens = [], []
    for token in range(pieces.vocab_size()):
        text = pieces.id_to_piece(token)
        kind = 2 if pieces.is_unknown(token) else 3 if pieces.is_control(token) else 6 if pieces.is_byte(token) else 1
        if text in ("\n", "\n\n", "\u2581\u2581", "\u2581\u2581\u2581\u2581", "<mask>"):
            kind, text = 4, text.replace("\u2581", " ")
        kinds.append(kind)
        tokens.append(text)
    scores = [pieces.get_score(token) for token in range(len(tokens))]
    roles = {"ggml__bos_token_id": 1, "ggml__eos_token_id": 2, "ggml__unknown_token_id": 0}
    fields = {"ggml__tokens": tokens, "ggml__scores": scores, "ggml__token_type": kinds}
    return {"ggml__model": "llama", **fields, **roles}


def test_pairs_by_score_are_what_sentencepiece_makes(pieces):
    found = made(**of_pieces(pieces), ggml__add_space_prefix=False)
    for text in [*TEXTS[:-1], *docstrings()]:
        assert ids(found, text) == pieces.encode(text), text
        assert found.decode(ids(found, text)) == pieces.decode(pieces.encode(text))
    assert found.encode("hi").ids == [1, *pieces.encode("hi")]


def test_a_prefix_space_is_added_and_taken_away(pieces):
    found = made(**of_pieces(pieces), ggml__add_eos_token=True, ggml__add_bos_token=False)
    for text in ("Hello world", "1234 don't", "naïve 你好 🙂", "x"):
        expected = ids(made(**of_pieces(pieces), ggml__add_space_prefix=False), f" {text}")
        assert found.encode(text).ids == [*expected, 2]
        assert found.decode(expected) == text


def byte_level(split: tuple[str, ...], nfc: bool) -> Tokenizer:
    trained = Tokenizer(models.BPE())
    steps = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in split]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trained.pre_tokenizer = pre_tokenizers.Sequence([*steps, level])
    trained.decoder = decoders.ByteLevel()
    trained.normalizer = normalizers.NFC() if nfc else None
    trained.train_from_iterator(
        docstrings(),
        trainers.BpeTrainer(
            vocab_size=900,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    trained.add_tokens(["<think>", "    "])
    return trained


def of_bytes(trained: Tokenizer, name: str) -> dict[str, Any]:
    state = json.loads(trained.to_str())
    special = {token["id"]: 3 if token["special"] else 4 for token in state["added_tokens"]}
    tokens = [trained.id_to_token(token) for token in range(trained.get_vocab_size())]
    tokens += ["[PAD910]", "[PAD911]"]
    kinds = [special.get(token, 1) for token in range(len(tokens) - 2)] + [5, 5]
    merges = [" ".join(merge) for merge in state["model"]["merges"]]
    fields = {"ggml__tokens": tokens, "ggml__token_type": kinds, "ggml__merges": merges, "ggml__eos_token_id": 0}
    return {"ggml__model": "gpt2", "ggml__pre": name, **fields}


@pytest.mark.parametrize("name", sorted({split: name for name, split in SPLITS.items()}.values()))
def test_byte_level_pairs_are_those_of_a_tokenizer_with_the_same_merges(name):
    split = SPLITS[name]
    trained = byte_level(split.expressions, split.nfc)
    found = made(**of_bytes(trained, name))
    for text in [*TEXTS, *docstrings()]:
        assert found.decode(ids(found, text), skip_special_tokens=False) == trained.decode(
            ids(trained, text), skip_special_tokens=False
        )
        if not split.whole_words:
            assert ids(found, text) == ids(trained, text), text
    assert "[PAD910]" not in found.get_vocab()


@pytest.mark.parametrize(
    ("name", "package"),
    [("qwen2", "Qwen2Tokenizer"), ("gpt-2", "GPT2Tokenizer"), ("llama-bpe", None), ("tekken", None)],
)
def test_texts_are_split_as_the_tokenizers_of_transformers_split_them(name, package):
    """For the classes that have their own expression; for the others, on cases whose pieces are known."""
    trained = byte_level(SPLITS[name].expressions, SPLITS[name].nfc)
    found = made(**of_bytes(trained, name))
    if package is not None:
        import transformers

        state = json.loads(trained.to_str())
        merges = [tuple(merge) for merge in state["model"]["merges"]]
        theirs = getattr(transformers, package)(vocab=state["model"]["vocab"], merges=merges)
        for text in [*TEXTS[:-1], *docstrings()]:
            if "    " not in text:  # an added token here
                assert ids(found, text) == theirs.encode(text, add_special_tokens=False), text
        return
    split = [piece for piece, _ in found.pre_tokenizer.pre_tokenize_str("I'LL pay 12345 HTMLParser's\n\n  x")]
    numbers = ["Ġ", "123", "45"] if name == "llama-bpe" else ["Ġ", "1", "2", "3", "4", "5"]
    assert split == ["I", "'LL", "Ġpay", *numbers, "ĠHTMLParser", "'s", "ĊĊ", "Ġ", "Ġx"]


@pytest.mark.parametrize("lower", [True, False])
def test_word_pieces_are_those_of_bert(lower):
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.normalizer = normalizers.BertNormalizer(lowercase=lower)
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trained.train_from_iterator(
        docstrings(), trainers.WordPieceTrainer(vocab_size=600, special_tokens=special, show_progress=False)
    )
    texts = [trained.id_to_token(token) for token in range(trained.get_vocab_size())]
    marked = [text if text in special else text[2:] if text.startswith("##") else f"\u2581{text}" for text in texts]
    kinds = [3 if text in special else 1 for text in texts]
    roles = {"ggml__unknown_token_id": 1, "ggml__padding_token_id": 0, "ggml__seperator_token_id": 3}
    found = made(ggml__model="bert", ggml__tokens=marked, ggml__token_type=kinds, **roles)
    for text in [*TEXTS, *docstrings()]:
        assert ids(found, text) == ids(trained, text), text
    assert found.encode("json", "text").ids == [2, *ids(trained, "json"), 3, *ids(trained, "text"), 3]
    assert found.encode("json", "text").type_ids == [0] * (2 + len(ids(trained, "json"))) + [1] * (
        1 + len(ids(trained, "text"))
    )


def test_unigrams_are_those_of_sentencepiece():
    stream = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in docstrings() for line in text.split("\n")]),
        model_writer=stream,
        vocab_size=400,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    theirs = sentencepiece.SentencePieceProcessor(model_proto=stream.getvalue())
    count = theirs.vocab_size()
    found = made(
        ggml__model="t5",
        ggml__tokens=[theirs.id_to_piece(token) for token in range(count)],
        ggml__scores=[theirs.get_score(token) for token in range(count)],
        ggml__token_type=[2, 3, 3, *([1] * (count - 3))],
        ggml__unknown_token_id=0,
        ggml__bos_token_id=1,
        ggml__eos_token_id=2,
        ggml__remove_extra_whitespaces=True,
    )
    for text in ("json text", "  two   spaces ", "def random(self): return 1", "value_of-x"):
        assert ids(found, text) == theirs.encode(text), text
    assert found.encode("json").ids == [1, *theirs.encode("json"), 2]


def small(**more: Any) -> dict[str, Any]:
    """A byte-level vocabulary of all bytes."""
    tokens = [*pre_tokenizers.ByteLevel.alphabet(), "<|end|>", "<|im_end|>", "<think>"]
    kinds = [1] * 256 + [3, 3, 4]
    fields = {"ggml__tokens": tokens, "ggml__token_type": kinds, "ggml__merges": []}
    return {"ggml__model": "gpt2", "ggml__pre": "gpt-2", "ggml__eos_token_id": 256, **fields, **more}


def folder(tmp_path: Path, **metadata: Any) -> Path:
    found = vocabulary(**metadata)
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer(found)))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(found)))
    return tmp_path


def test_control_tokens_are_special_and_user_defined_ones_are_not(tmp_path):
    found = QuireTokenizer.load(folder(tmp_path, **small()))
    text = "<think>hi<|im_end|>"
    assert found.encode(text)[-1] == 257
    assert found.decode(found.encode(text), skip_special_tokens=True) == "<think>hi"
    assert AutoTokenizer.from_pretrained(tmp_path).encode(text) == list(found.encode(text))
    assert vocabulary(**small()).end_ids() == [256, 257]


def test_chat_templates_with_and_without_names_are_kept(tmp_path):
    assert not QuireTokenizer.load(folder(tmp_path, **small())).chat_templates
    found = QuireTokenizer.load(folder(tmp_path, **small(chat_template="plain")))
    assert found.chat_templates == {"default": "plain"}
    named = {"chat_templates": ["tool_use", "rag"], "chat_template__tool_use": "tools", "chat_template__rag": "rag"}
    found = QuireTokenizer.load(folder(tmp_path, **small(chat_template="plain", **named)))
    assert found.chat_templates == {"default": "plain", "tool_use": "tools", "rag": "rag"}


def wrong() -> Iterator[tuple[dict[str, Any], str]]:
    yield {"ggml__model": "rwkv"}, "`tokenizer.ggml.model` is 'rwkv'; bert, gpt2, llama, t5 can be read"
    yield {"ggml__pre": "unheard-of"}, "`tokenizer.ggml.pre` is 'unheard-of'; known are"
    yield {"ggml__tokens": []}, "`tokenizer.ggml.tokens` is missing: the file has no tokenizer"
    yield {"ggml__tokens": 3}, "`tokenizer.ggml.tokens` must be an array of texts"
    yield {"ggml__token_type": [1, 1]}, "`tokenizer.ggml.token_type` has 2 elements for 259 tokens"
    yield {"ggml__token_type": [9] * 259}, "`tokenizer.ggml.token_type` has an element that is no type of token"
    yield {"ggml__eos_token_id": 259}, "`tokenizer.ggml.eos_token_id` is 259, and there are 259 tokens"
    yield {"ggml__eos_token_id": "x"}, "`tokenizer.ggml.eos_token_id` must be one whole number"
    yield {"ggml__merges": ["a zz"]}, "`tokenizer.ggml.merges` has an element 0, 'a zz', that joins no two tokens"
    yield {"ggml__merges": ["ab"]}, "`tokenizer.ggml.merges` has an element 0, 'ab', that joins no two tokens"
    yield {"ggml__merges": None}, "`tokenizer.ggml.merges` is missing"
    yield {"ggml__model": "llama"}, "`tokenizer.ggml.scores` is missing"
    yield {"ggml__add_bos_token": 1}, "`tokenizer.ggml.add_bos_token` must be true or false"
    yield {"chat_template": 5}, "`tokenizer.chat_template` must be a text"


@pytest.mark.parametrize(("metadata", "words"), list(wrong()))
def test_metadata_that_describes_no_tokenizer_is_refused_with_its_key(metadata, words):
    given = {key: value for key, value in small(**metadata).items() if value is not None}
    with pytest.raises(CheckpointError) as caught:
        found = vocabulary(**given)
        tokenizer(found), tokenizer_config(found)
    assert words in caught.value.message
