"""What the demo LLaVA reads: its tokenizer, chat template and image processor."""

from __future__ import annotations

import random
from collections.abc import Iterator

from data.images.picture_questions import NO_PICTURE, ask_all, casually
from data.images.scenes import training_scenes
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import CLIPImageProcessorPil, LlavaProcessor, PreTrainedTokenizerFast

PAD, IMAGE, SYSTEM, USER, ASSISTANT, END = SPECIAL = (
    "<|pad|>",
    "<image>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
)
SYSTEM_TEXTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant that answers questions about pictures.",
    "Answer the question about the picture.",
    "You are an assistant. Be brief.",
)
PICTURE_SIZE, PATCH_SIZE = 72, 8
PATCHES = PICTURE_SIZE // PATCH_SIZE
"""In a row, and in a column."""

# The content of a message is a text or a list of parts. As with LLaVA 1.5, its pictures come before its texts.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] in ['user', 'assistant'] -%}<|{{ message['role'] }}|>{%- else -%}<|system|>{%- endif -%}"
    "{%- if message['content'] is string -%}{{ message['content'] | trim }}"
    "{%- else -%}"
    "{%- for part in message['content'] if part['type'] == 'image' -%}<image>{%- endfor -%}"
    "{%- for part in message['content'] if part['type'] == 'text' -%}"
    "{{ '' if loop.first else ' ' }}{{ part['text'] | trim }}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "{%- if message['role'] == 'assistant' -%}<|end|>{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)


def train_tokenizer(scenes: int, max_length: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on questions and answers; any other text is spelt out in bytes."""
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Split(Regex(r"\d"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        # More than there are words, so that each of them becomes a token.
        vocab_size=4096,
        min_frequency=8,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in SPECIAL],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample_text(scenes), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        extra_special_tokens={"image_token": IMAGE},
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )


def _sample_text(scenes: int) -> Iterator[str]:
    """The text from which the tokenizer learns."""
    rng = random.Random("tokenizer")
    stream = training_scenes(rng)
    for _ in range(scenes):
        yield from (*SYSTEM_TEXTS, NO_PICTURE)
        for question in ask_all(next(stream), rng):
            yield from (question.text, question.answer, casually(question.text, rng))


def new_processor(tokenizer: PreTrainedTokenizerFast) -> LlavaProcessor:
    """The processor as `from_pretrained` gives it: its image processor needs Pillow and no more."""
    images = CLIPImageProcessorPil(
        size={"shortest_edge": PICTURE_SIZE},
        crop_size={"height": PICTURE_SIZE, "width": PICTURE_SIZE},
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    return LlavaProcessor(
        images,
        tokenizer,
        patch_size=PATCH_SIZE,
        vision_feature_select_strategy="default",
        chat_template=CHAT_TEMPLATE,
        # The class token, which "default" leaves out again.
        num_additional_image_tokens=1,
    )
