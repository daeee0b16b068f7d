"""From texts to token ids for the retrieval demos: the tokenizer, and batches of texts or of pairs of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from string import ascii_lowercase, digits

import torch
from data.retrieval.training_pairs import training_pairs
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

PAD, UNKNOWN, START, SEPARATOR = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def train_tokenizer(vocab_size: int, batches: int, max_length: int) -> PreTrainedTokenizerFast:
    """Train a WordPiece tokenizer of lower-case text on the generator's text."""
    letters = [f"##{letter}" for letter in (*ascii_lowercase, *digits)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        initial_alphabet=[chr(code) for code in range(33, 127)],
        # Letters within words are named here so that any word is in the vocabulary, letter by letter at worst.
        # And because the trainer would number them in an order that differs from run to run, by which it then decides
        # between pairs that are equally frequent.
        special_tokens=[*SPECIAL, *letters],
        show_progress=False,
    )
    learner = _word_pieces({})
    learner.train_from_iterator(_sample_text(batches), trainer)
    pieces = sorted(set(learner.get_vocab()) - set(SPECIAL))
    tokenizer = _word_pieces({piece: i for i, piece in enumerate([*SPECIAL, *pieces])})
    ids = {name: tokenizer.token_to_id(name) for name in SPECIAL}
    tokenizer.post_processor = processors.BertProcessing((SEPARATOR, ids[SEPARATOR]), (START, ids[START]))
    tokenizer.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        cls_token=START,
        sep_token=SEPARATOR,
        model_max_length=max_length,
        # Token types tell a question from a passage.
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def _word_pieces(vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _sample_text(batches: int) -> Iterator[str]:
    """The text from which the tokenizer learns."""
    for batch in range(batches):
        for pair in training_pairs(f"tokenizer:{batch}", 100):
            yield pair.question.text
            yield pair.partner.text


def encode(
    tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], seconds: Sequence[str] | None = None
) -> dict[str, torch.Tensor]:
    """A padded batch of texts, or of pairs of texts: ids, mask and token types, each [texts, longest]."""
    batch = tokenizer(
        list(texts),
        None if seconds is None else list(seconds),
        padding=True,
        truncation=True,
        return_token_type_ids=True,
        return_tensors="pt",
    )
    return dict(batch)
