"""What the demo reranker computes, in plain torch: a score for a question and a passage that are read together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from data.retrieval.questions import answers
from data.retrieval.search_tasks import Search
from evaluation.retrieval_scores import ranking
from transformers import BertForSequenceClassification, BertModel, PreTrainedTokenizerFast

from models.bert_tokenizer import encode
from models.embedder import by_length, cut, embed


@torch.inference_mode()
def nearest(
    embedder: BertModel, tokenizer: PreTrainedTokenizerFast, search: Search, count: int = 10
) -> list[list[int]]:
    """For each question the places of the passages that the embedder takes for nearest, the best first."""
    texts = [text.text for text in (*search.questions, *search.passages)]
    embeddings = embed(embedder, tokenizer, texts)
    width, questions = embeddings.shape[1], len(search.questions)
    return ranking(cut(embeddings[:questions], width), cut(embeddings[questions:], width), count)


def score(
    model: BertForSequenceClassification,
    tokenizer: PreTrainedTokenizerFast,
    questions: Sequence[str],
    passages: Sequence[str],
    size: int = 96,
) -> torch.Tensor:
    """How well each passage answers the question of the same place: [pairs], in float32; above 0 means that it does."""
    places: list[int] = []
    scores = []
    for chosen in by_length([q + p for q, p in zip(questions, passages, strict=True)], size):
        batch = encode(tokenizer, [questions[i] for i in chosen], [passages[i] for i in chosen])
        scores.append(model(**batch).logits[:, 0].float())
        places += chosen
    return torch.cat(scores)[torch.tensor(places).argsort()]


@dataclass(frozen=True)
class Reranked:
    """ranked: places of passages in their new order. right: share of passages rightly told to be answers or not."""

    ranked: list[list[int]]
    right: float


@torch.inference_mode()
def rerank(
    model: BertForSequenceClassification,
    tokenizer: PreTrainedTokenizerFast,
    search: Search,
    ranked: Sequence[Sequence[int]],
) -> Reranked:
    """Put the passages that were found for each question in order."""
    pairs = [(q, p) for q, places in zip(search.questions, ranked, strict=True) for p in places]
    texts = [search.passages[p].text for _, p in pairs]
    scores = score(model, tokenizer, [question.text for question, _ in pairs], texts)
    truth = torch.tensor([answers(search.passages[p], question) for question, p in pairs])
    right = ((scores > 0) == truth).float().mean().item()
    rows = scores.view(len(ranked), -1).argsort(dim=1, descending=True).tolist()
    return Reranked([[places[i] for i in row] for places, row in zip(ranked, rows, strict=True)], right)
