"""Small tokenizers of every kind that models use, made in a moment, in Hugging Face's folder format."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 12 o'clock; don't wait!",
    "naïve café über straße — ¿qué? 你好世界 こんにちは 🙂👩‍👩‍👧 नमस्ते",
    "def f(x):\n    return x + 1\n\n\t# tabs  and   spaces",
] * 4
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level() -> Tokenizer:
    """As Llama 3, Qwen and GPT-2 have."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=330, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False),
    )
    made.add_tokens([AddedToken("two words", special=False), AddedToken("é!", special=False)])
    return made


def byte_fallback() -> Tokenizer:
    """As Llama 2, Mistral and Gemma have: spaces are marks, characters out of the vocabulary are bytes."""
    pieces = [
        "\u2581",
        "\u2581the",
        "\u2581fox",
        "ox",
        "é",
        "é\u2581",
        "a",
        "b",
        "\u2581b",
        "\u2581\u2581",
        "'s",
        ".",
        "🙂",
    ]
    vocab = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    made = Tokenizer(
        models.BPE(
            {token: i for i, token in enumerate(vocab)}, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True
        )
    )
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens(SPECIAL)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return made


def unigram() -> Tokenizer:
    """As T5 has: sentencepiece's unigram model with a metaspace decoder."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=160, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    return made


def word_piece() -> Tokenizer:
    """As BERT has: `##` continues a word."""
    made = Tokenizer(models.WordPiece(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(prefix="##")
    made.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL, show_progress=False)
    )
    return made


def word_ends() -> Tokenizer:
    """As early BPE models have: `</w>` ends a word."""
    made = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.BPEDecoder(suffix="</w>")
    made.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=200, special_tokens=SPECIAL, end_of_word_suffix="</w>", show_progress=False),
    )
    return made


KINDS = {
    "byte_level": byte_level,
    "byte_fallback": byte_fallback,
    "unigram": unigram,
    "word_piece": word_piece,
    "word_ends": word_ends,
}


def save(tokenizer: Tokenizer, folder: Path, template: str | None = TEMPLATE, **config: object) -> Path:
    """Write a model folder's tokenizer files."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        **({"chat_template": template} if template else {}),
        **config,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
