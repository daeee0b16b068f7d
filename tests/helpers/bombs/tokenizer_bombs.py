"""Changes of a tokenizer.json (byte-level BPE) with which short texts would need much memory or time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

Change = Callable[[dict[str, Any]], Any]


def _set(**parts: Any) -> Change:
    return lambda value: value.update(parts)


def _replace(pattern: Mapping[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _split(regex: str) -> Change:
    def change(value: dict[str, Any]) -> None:
        step = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
        steps = [step, value["pre_tokenizer"]] if value["pre_tokenizer"] else [step]
        value["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}

    return change


def _template(pieces: list[Any], special: Mapping[str, Any]) -> Change:
    texts = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    return _set(
        post_processor={"type": "TemplateProcessing", "single": pieces, "pair": texts, "special_tokens": special}
    )


def _model(**parts: Any) -> Change:
    bare = {"pre_tokenizer": None, "normalizer": None, "post_processor": None, "decoder": None, "added_tokens": []}
    return lambda value: value.update(bare, model=parts)


def _word_piece(**parts: Any) -> Change:
    return _model(
        type="WordPiece", unk_token="?", continuing_subword_prefix="##", vocab={"?": 0, "a": 1, "##a": 2}, **parts
    )


TEXT = {"Sequence": {"id": "A", "type_id": 0}}
DOUBLE = _replace({"String": "a"}, "aa")
MANY = {"<s>": {"id": "<s>", "ids": [1] * 10_000, "tokens": ["<s>"] * 10_000}}
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}

REFUSED: Mapping[str, tuple[Change, str]] = {
    "Replace a → 10 000 x": (_set(normalizer=_replace({"String": "a"}, "x" * 10_000)), "10000 times longer"),
    "Replace nothing → 10 000 x": (_set(normalizer=_replace({"String": ""}, "x" * 10_000)), "10000 times longer"),
    "Replace a → aa, 30 times": (
        _set(normalizer={"type": "Sequence", "normalizers": [DOUBLE] * 30}),
        f"{2**30} times longer",
    ),
    "Prepend 10⁶ characters": (_set(normalizer={"type": "Prepend", "prepend": "x" * 10**6}), "before a text"),
    "a decoder: Replace a → 10⁶ x": (_set(decoder=_replace({"String": "a"}, "x" * 10**6)), "1000000 times longer"),
    "a template of 1000 times the text": (_template([TEXT] * 1000, {}), "repeats the text"),
    "a template of 10 000 special tokens": (
        _template([TEXT, {"SpecialToken": {"id": "<s>", "type_id": 0}}], MANY),
        "tokens around a text",
    ),
    "Unigram with pieces of 3000 characters": (
        _model(type="Unigram", unk_id=0, vocab=[["?", 0.0], *(["a" * n, -1.0] for n in range(1, 3001))]),
        "a piece of more than 512 characters",
    ),
    "WordPiece of words of 10⁹ characters": (
        _word_piece(max_input_chars_per_word=10**9),
        "max_input_chars_per_word is more than 256",
    ),
    "the id 4·10⁹": (lambda value: value["model"]["vocab"].update(big=2**32 - 1), "the id 4294967295"),
    "the id -1": (lambda value: value["model"]["vocab"].update(big=-1), "invalid value"),
    "merges of tokens that are missing": (lambda value: value["model"]["merges"].append("qq zz"), "out of vocabulary"),
    "a damaged table of characters": (
        _set(normalizer={"type": "Precompiled", "precompiled_charsmap": "EAAAAP//////w=="}),
        "Precompiled",
    ),
    "normalizers 1000 deep": (_set(normalizer="DEEP"), "recursion limit"),
}
"""The change, and words of the sentence with which the tokenizer is refused."""

BOUNDED: Mapping[str, tuple[Change, str]] = {
    "the pattern (a+)+$": (_split("(a+)+$"), "a" * 40 + "!"),
    "the pattern (a|aa)+$": (_split("(a|aa)+$"), "a" * 60_000 + "!"),
    "a normalizer with the pattern (a+)+$": (_set(normalizer=_replace({"Regex": "(a+)+$"}, "x")), "a" * 40 + "!"),
    "WordPiece without its unknown token": (
        _model(
            type="WordPiece",
            unk_token="none",
            continuing_subword_prefix="##",
            max_input_chars_per_word=100,
            vocab={"a": 0},
        ),
        "b",
    ),
}
"""The change, and a text that cannot be tokenized with it: a request with the text gets an error."""


def changed(text: str, change: Change) -> str:
    """A tokenizer.json after a change."""
    value = json.loads(text)
    change(value)
    deep = '{"type":"Sequence","normalizers":[' * 1000 + "]}" * 1000
    return json.dumps(value).replace('"DEEP"', deep)
