"""tokenizer.json and tokenizer_config.json of a GGUF model, in the format of the `tokenizers` library.

Four kinds of vocabularies: SentencePiece's pairs merged by score ("llama"), byte-level pairs with listed merges
("gpt2"), WordPiece ("bert") and SentencePiece's unigram ("t5").
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from quire_models.gguf.text.splits import SPLITS, Split
from quire_models.gguf.text.vocabulary import BYTE, NORMAL, UNUSED, USER_DEFINED, Vocabulary

Json: TypeAlias = dict[str, Any]
SPACE = "\u2581"
"""How SentencePiece writes a space."""
MAX_SPLIT_CHARS = 512
"""Tokens longer than this are not merged from parts."""
TEMPLATE = "tokenizer.chat_template"


def tokenizer(vocabulary: Vocabulary) -> Json:
    """The content of tokenizer.json. Raises CheckpointError for a kind that cannot be read or metadata not valid."""
    build = _KINDS.get(vocabulary.kind)
    if build is None:
        reason = f"is {vocabulary.kind!r:.40}; {', '.join(sorted(_KINDS))} can be read"
        raise vocabulary.metadata.error("tokenizer.ggml.model", reason)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": vocabulary.added_tokens(),
        **build(vocabulary),
    }


def tokenizer_config(vocabulary: Vocabulary) -> Json:
    """The content of tokenizer_config.json: special tokens and chat templates."""
    texts = {role: text for role in vocabulary.roles if (text := vocabulary.text(role)) is not None}
    templates = _templates(vocabulary)
    chat = {"chat_template": templates} if templates else {}
    return {
        **texts,
        **chat,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": vocabulary.metadata.size("context_length"),
    }


def _templates(vocabulary: Vocabulary) -> str | list[Json] | None:
    m = vocabulary.metadata
    default = m.text(TEMPLATE)
    named = [(name, m.text(f"{TEMPLATE}.{name}")) for name in m.texts("tokenizer.chat_templates") or ()]
    found = [{"name": name, "template": template} for name, template in named if template is not None]
    if not found:
        return default
    return [*([{"name": "default", "template": default}] if default is not None else []), *found]


def _surrounding(vocabulary: Vocabulary, bos: bool, eos: bool, first: str, last: str) -> Json | None:
    """The post-processor that puts the tokens of the roles `first` and `last` around texts, if wanted."""
    m = vocabulary.metadata
    before = vocabulary.text(first) if m.flag("tokenizer.ggml.add_bos_token", bos) else None
    after = vocabulary.text(last) if m.flag("tokenizer.ggml.add_eos_token", eos) else None
    if before is None and after is None:
        return None

    def special(text: str | None, kind: int) -> list[Json]:
        return [] if text is None else [{"SpecialToken": {"id": text, "type_id": kind}}]

    single = [*special(before, 0), {"Sequence": {"id": "A", "type_id": 0}}, *special(after, 0)]
    second = [] if first == "cls_token" else special(before, 1)
    pair = [*single, *second, {"Sequence": {"id": "B", "type_id": 1}}, *special(after, 1)]
    used = {text: vocabulary.ids[text] for text in (before, after) if text is not None}
    tokens = {text: {"id": text, "ids": [index], "tokens": [text]} for text, index in used.items()}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}


def _pairs(vocabulary: Vocabulary, ids: Mapping[str, int], merges: list[list[str]], **more: Any) -> Json:
    fields = {"dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "byte_fallback": False}
    return {
        "type": "BPE",
        **fields,
        "unk_token": None,
        "fuse_unk": False,
        "ignore_merges": False,
        "vocab": ids,
        "merges": merges,
        **more,
    }


def _sentencepiece(vocabulary: Vocabulary) -> Json:
    m = vocabulary.metadata
    prefix = m.flag("tokenizer.ggml.add_space_prefix", True)
    ids = vocabulary.ids
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    steps = [{"type": "Prepend", "prepend": SPACE}, replace] if prefix else [replace]
    decoders: list[Json] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    bytes_known = BYTE in vocabulary.types
    unknown = vocabulary.text("unk_token")
    model = _pairs(
        vocabulary, ids, _merges_by_score(vocabulary), byte_fallback=bytes_known, unk_token=unknown, fuse_unk=True
    )
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "post_processor": _surrounding(vocabulary, True, False, "bos_token", "eos_token"),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }


def _merges_by_score(vocabulary: Vocabulary) -> list[list[str]]:
    """Every way to make a token of two, best score first: SentencePiece joins the neighbours of the best score.

    Of equal scores, the token with the lower id comes first.
    """
    scores = vocabulary.scores
    if scores is None:
        raise vocabulary.metadata.error("tokenizer.ggml.scores", "is missing")
    parts = {text for text, index in vocabulary.ids.items() if vocabulary.types[index] in (NORMAL, UNUSED)}
    made = sorted(
        (index for text, index in vocabulary.ids.items() if text in parts and 1 < len(text) <= MAX_SPLIT_CHARS),
        key=lambda index: (-scores[index], index),
    )
    return [pair for index in made for pair in _splits(vocabulary.tokens[index], parts)]


def _splits(text: str, parts: set[str]) -> Iterator[list[str]]:
    for cut in range(1, len(text)):
        if text[:cut] in parts and text[cut:] in parts:
            yield [text[:cut], text[cut:]]


def _byte_level(vocabulary: Vocabulary) -> Json:
    m = vocabulary.metadata
    split = _split(vocabulary)
    merges = m.texts("tokenizer.ggml.merges")
    if merges is None:
        raise m.error("tokenizer.ggml.merges", "is missing")
    ids = vocabulary.ids
    pairs = []
    for index, merge in enumerate(merges):
        cut = merge.find(" ", 1)
        pair = [merge[:cut], merge[cut + 1 :]]
        if cut < 0 or not (pair[0] in ids and pair[1] in ids and "".join(pair) in ids):
            raise m.error("tokenizer.ggml.merges", f"has an element {index}, {merge!r:.40}, that joins no two tokens")
        pairs.append(pair)
    isolated = {"type": "Split", "behavior": "Isolated", "invert": False}
    steps: list[Json] = [{**isolated, "pattern": {"Regex": expression}} for expression in split.expressions]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "normalizer": {"type": "NFC"} if split.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, byte_level]},
        "post_processor": _surrounding(vocabulary, split.adds_bos, split.adds_eos, "bos_token", "eos_token"),
        "decoder": {**byte_level, "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": _pairs(vocabulary, ids, pairs, ignore_merges=split.whole_words),
    }


def _split(vocabulary: Vocabulary) -> Split:
    name = vocabulary.metadata.text("tokenizer.ggml.pre", "default")
    found = SPLITS.get(name or "default")
    if found is None:
        raise vocabulary.metadata.error("tokenizer.ggml.pre", f"is {name!r:.40}; known are {', '.join(sorted(SPLITS))}")
    return found


def _wordpiece(vocabulary: Vocabulary) -> Json:
    """WordPiece; the converter writes `▁word` and `end` for `word` and `##end`."""
    m = vocabulary.metadata
    ids = {}
    for text, index in vocabulary.ids.items():
        plain = vocabulary.types[index] not in (NORMAL, UNUSED, USER_DEFINED)
        ids[text if plain else text[1:] if text.startswith(SPACE) else f"##{text}"] = index
    cased = any(text != text.lower() for text, index in ids.items() if vocabulary.types[index] == NORMAL)
    lower = m.flag("tokenizer.ggml.normalizer.lowercase", not cased)
    strip = m.flag("tokenizer.ggml.normalizer.strip_accents", lower)
    roles = dict(vocabulary.roles)
    for role, text in (("cls_token", "[CLS]"), ("sep_token", "[SEP]"), ("unk_token", "[UNK]")):
        if role not in roles and text in ids:
            roles[role] = ids[text]
    named = Vocabulary(m, vocabulary.tokens, vocabulary.types, vocabulary.scores, roles)
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": strip,
            "lowercase": lower,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _surrounding(named, True, True, "cls_token", "sep_token"),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": named.text("unk_token") or "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
    }


def _unigram(vocabulary: Vocabulary) -> Json:
    m = vocabulary.metadata
    scores = vocabulary.scores
    if scores is None:
        raise m.error("tokenizer.ggml.scores", "is missing")
    charsmap = m.numbers("tokenizer.ggml.precompiled_charsmap")
    steps: list[Json] = []
    if charsmap:
        try:
            raw = bytes(int(value) & 255 for value in charsmap)
        except (TypeError, ValueError):
            raise m.error("tokenizer.ggml.precompiled_charsmap", "must be an array of bytes") from None
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(raw).decode()})
    if m.flag("tokenizer.ggml.remove_extra_whitespaces", False):
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
    scheme = "always" if m.flag("tokenizer.ggml.add_space_prefix", True) else "never"
    space = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": True}
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
        "pre_tokenizer": space,
        "post_processor": _surrounding(vocabulary, True, True, "bos_token", "eos_token"),
        "decoder": space,
        "model": {
            "type": "Unigram",
            "unk_id": vocabulary.roles.get("unk_token"),
            "vocab": [[text, score] for text, score in zip(vocabulary.tokens, scores, strict=True)],
            "byte_fallback": BYTE in vocabulary.types,
        },
    }


_KINDS: Mapping[str, Callable[[Vocabulary], Json]] = {
    "llama": _sentencepiece,
    "gpt2": _byte_level,
    "bert": _wordpiece,
    "t5": _unigram,
}
