"""How often a draft model chooses the token that the model it drafts for chooses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from data.chat.conversations import Question
from models.chat_tokenizer import IGNORE, Encoder
from transformers import PreTrainedModel


@torch.inference_mode()
def agreement(
    draft: PreTrainedModel, target: PreTrainedModel, encoder: Encoder, questions: Sequence[Question]
) -> float:
    """Share of the tokens of the expected answers at which both models find the same token the most likely."""
    same = tokens = 0
    for question in questions:
        answered = [*question.messages, {"role": "assistant", "content": question.answer}]
        ids, wanted = encoder.conversation(answered)
        header = encoder.conversation(list(question.messages))
        rows = [i for i in range(len(header[0]), len(ids)) if wanted[i] != IGNORE]
        chosen = [model(torch.tensor([ids])).logits[0].argmax(-1) for model in (draft, target)]
        same += sum(int(chosen[0][i - 1] == chosen[1][i - 1]) for i in rows)
        tokens += len(rows)
    return same / tokens
