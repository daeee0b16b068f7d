"""From conversations to token ids: the chat template, the tokenizer and the packing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from data.chat.conversations import Message, training_conversations
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
IGNORE = -100
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train_tokenizer(vocab_size: int, conversations: int, max_length: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on generated conversations.

    Digits are always tokens of their own.  Pairs such as "27" would otherwise
    become symbols without any visible relation to 2 and 7, and the model could
    not carry what it learns about digits over to pairs it has never seen.
    """
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Split(Regex(r"\d"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        # All 256 bytes, so that no text of a user can be out of vocabulary.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in (PAD, START, END)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample_text(conversations), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )


def _sample_text(conversations: int) -> Iterator[str]:
    """The text from which the tokenizer learns, role names included."""
    stream = training_conversations("tokenizer")
    for _ in range(conversations):
        for message in next(stream):
            yield f"{message['role']}\n{message['content']}"


class Encoder:
    """Turns conversations into token ids and training targets."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._ids = lru_cache(maxsize=65536)(self._encode)

    def _encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a piece of text; cached, for most pieces come again."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def conversation(self, messages: list[Message]) -> tuple[list[int], list[int]]:
        """Ids of a conversation, and targets that are IGNORE outside of answers.

        The pieces are encoded one by one.  That equals encoding the whole text,
        because the markers between them are never merged with their neighbours.
        """
        ids: list[int] = []
        targets: list[int] = []
        for message in messages:
            header = self._ids(f"{START}{message['role']}\n")
            body = self._ids(f"{message['content']}{END}")
            tail = self._ids("\n")
            learned = body if message["role"] == "assistant" else (IGNORE,) * len(body)
            ids += header + body + tail
            targets += (IGNORE,) * len(header) + learned + (IGNORE,) * len(tail)
        return ids, targets


def pack(
    encoder: Encoder, conversations: Iterator[list[Message]], rows: int, length: int, pad_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fill a batch with conversations one after the other, separated by the padding token.

    A row shows the model what came before the current conversation as well.
    That is wanted: it learns to answer at any position and to ignore what was
    said long ago, which is what a long chat asks of it.  The last conversation
    of a row may be cut off, for the beginning of a conversation is one too.
    """
    ids = torch.full((rows, length), pad_id)
    targets = torch.full((rows, length), IGNORE)
    for row in range(rows):
        tokens: list[int] = []
        wanted: list[int] = []
        while len(tokens) < length:
            new_tokens, new_wanted = encoder.conversation(next(conversations))
            tokens += [*new_tokens, pad_id]
            wanted += [*new_wanted, IGNORE]
        ids[row] = torch.tensor(tokens[:length])
        targets[row] = torch.tensor(wanted[:length])
    return ids, targets
