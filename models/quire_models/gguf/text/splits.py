"""How byte-level vocabularies split text before merges, by the name in `tokenizer.ggml.pre`.

The expressions are those of the models' own tokenizer.json; llama.cpp has names for them (src/llama-vocab.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass

_CONTRACTION = r"'s|'t|'re|'ve|'m|'ll|'d"
_GPT2 = rf"{_CONTRACTION}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"(?i:{_CONTRACTION})|{_WORD}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"(?i:{_CONTRACTION})|{_WORD}|\p{{N}}|{_REST}"
_QWEN35 = (
    rf"(?i:{_CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{{end}}|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{{end}}"
    r"|\p{N}{digits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = _CASED.replace("{end}", "").replace("{digits}", "")
_GPT4O = _CASED.replace("{end}", rf"(?i:{_CONTRACTION})?").replace("{digits}", "{1,3}")
_CJK = "[一-龥\u3040-ゟ゠-ヿ]+"
_SYMBOLS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_DEEPSEEK3 = (
    rf"{_SYMBOLS}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Split:
    """expressions: applied one after another, each to the pieces of the one before.

    whole_words: a piece that is a token is not merged from its bytes. adds_bos, adds_eos: whether texts get these
    tokens if the file does not say. nfc: text is normalized first.
    """

    expressions: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False
    adds_eos: bool = False
    nfc: bool = False


_LLAMA3_SPLIT = Split((_LLAMA3,), whole_words=True, adds_bos=True)
_GPT2_SPLIT = Split((_GPT2,))
_DIGITS_SPLIT = Split((r"\p{N}", _GPT2))
_QWEN2_SPLIT = Split((_QWEN2,), nfc=True)
_ROBERTA_SPLIT = Split((_GPT2,), adds_bos=True, adds_eos=True)
_DEFAULT_SPLIT = Split((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))
_BY_SPLIT = (
    (_DEFAULT_SPLIT, ("default",)),
    (_LLAMA3_SPLIT, ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2")),
    (Split((_LLAMA3,)), ("dbrx", "smaug-bpe")),
    (Split((_LLAMA3,), whole_words=True), ("glm4",)),
    (_GPT2_SPLIT, ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4", "mellum", "granite-docling")),
    (_DIGITS_SPLIT, ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b")),
    (_QWEN2_SPLIT, ("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez")),
    (Split((_QWEN2,)), ("stablelm2", "hunyuan", "solar-open", "grok-2")),
    (Split((_QWEN35,), nfc=True), ("qwen35",)),
    (Split((_TEKKEN,), whole_words=True, adds_bos=True), ("tekken",)),
    (Split((_GPT4O,)), ("gpt-4o", "llama4", "kanana2")),
    (Split((r"\p{N}{1,3}", _CJK, _DEEPSEEK3)), ("deepseek-v3", "hunyuan-dense")),
    (Split(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")), ("deepseek-coder",)),
    (Split((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")), ("falcon",)),
    (_ROBERTA_SPLIT, ("roberta-bpe", "jina-v1-en", "jina-v2-code")),
)
SPLITS = {name: split for split, names in _BY_SPLIT for name in names}
"""By the name in `tokenizer.ggml.pre`."""
