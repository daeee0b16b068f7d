"""How well passages are found: how often the first answers the question, and how far down the first that does is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from data.retrieval.questions import answers
from data.retrieval.search_tasks import Search


@dataclass(frozen=True)
class Quality:
    """recall: share of questions whose first passage answers. reciprocal_rank: mean of 1/rank of the first to do so."""

    recall: float
    reciprocal_rank: float

    def __str__(self) -> str:
        return f"recall@1 {100 * self.recall:6.2f} %   MRR@10 {self.reciprocal_rank:.4f}"


def ranking(questions: torch.Tensor, passages: torch.Tensor, count: int = 10) -> list[list[int]]:
    """Places of the passages nearest to each question. Both are embeddings of length 1, [texts, dimensions]."""
    ranked: list[list[int]] = (questions @ passages.T).topk(count).indices.tolist()
    return ranked


def quality(search: Search, ranked: Sequence[Sequence[int]]) -> Quality:
    """Of places of passages, the best first, for each question."""
    ranks = [
        next((rank for rank, i in enumerate(places, 1) if answers(search.passages[i], question)), None)
        for question, places in zip(search.questions, ranked, strict=True)
    ]
    found = [1 / rank if rank else 0.0 for rank in ranks]
    return Quality(sum(rank == 1 for rank in ranks) / len(ranks), sum(found) / len(found))


def mean(found: Sequence[Quality]) -> Quality:
    """Of searches of the same size."""
    return Quality(sum(q.recall for q in found) / len(found), sum(q.reciprocal_rank for q in found) / len(found))
