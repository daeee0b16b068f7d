"""Greedy answers of a model, in batches, and how many of them are exactly right."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from data.chat.conversations import Message, Question
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from evaluation.reports import shares

Answerer = Callable[[Sequence[list[Message]]], list[str]]


def generate(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    chats: Sequence[list[Message]],
    batch_size: int = 64,
    max_new_tokens: int = 160,
) -> list[str]:
    """Answer every chat greedily."""
    prompts = [tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=True) for c in chats]
    return complete(model, tokenizer, prompts, batch_size, max_new_tokens)


@torch.inference_mode()
def complete(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    batch_size: int = 64,
    max_new_tokens: int = 160,
) -> list[str]:
    """Continue every prompt greedily; prompts of similar length share a batch."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    answers = [""] * len(prompts)
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        batch = tokenizer(
            [prompts[i] for i in chosen],
            padding=True,
            padding_side="left",
            add_special_tokens=False,
            return_tensors="pt",
            return_token_type_ids=False,
        )
        output = model.generate(**batch, max_new_tokens=max_new_tokens, do_sample=False)
        new = output[:, batch["input_ids"].shape[1] :]
        for i, text in zip(chosen, tokenizer.batch_decode(new, skip_special_tokens=True), strict=True):
            answers[i] = text
    return answers


def score(questions: Sequence[Question], answers: Sequence[str]) -> dict[str, float]:
    """Share of exact matches per family, and over all questions as ``overall``."""
    return shares((q.family, answer.strip() == q.answer) for q, answer in zip(questions, answers, strict=True))
