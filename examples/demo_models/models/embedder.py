"""What the demo embedder computes, in plain torch: the mean of the last hidden states, of length 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.nn.functional import normalize
from transformers import BertModel, PreTrainedTokenizerFast

from models.bert_tokenizer import encode


def by_length(texts: Sequence[str], size: int) -> Iterator[list[int]]:
    """Places of texts, those of similar length together, so that little is padded."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def embed(
    model: BertModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], shift: int = 0, size: int = 96
) -> torch.Tensor:
    """Means of hidden states, [texts, width], in float32 and not normalised. shift: position of the first token."""
    places: list[int] = []
    means = []
    for chosen in by_length(texts, size):
        batch = encode(tokenizer, [texts[i] for i in chosen])
        positions = shift + torch.arange(batch["input_ids"].shape[1])[None]
        hidden = model(**batch, position_ids=positions).last_hidden_state.float()
        mask = batch["attention_mask"][..., None]
        means.append((hidden * mask).sum(1) / mask.sum(1))
        places += chosen
    return torch.cat(means)[torch.tensor(places).argsort()]


def cut(embeddings: torch.Tensor, dimensions: int) -> torch.Tensor:
    """The first numbers of each embedding, of length 1 again: [texts, dimensions]."""
    return normalize(embeddings[:, :dimensions], dim=-1)
