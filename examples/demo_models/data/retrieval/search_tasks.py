"""Searches: questions, and the passages among which their answers lie, to train and to evaluate on.

    python -m data.retrieval.search_tasks

prints a few lessons, and held-out questions with their answers.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from data.retrieval.invented_worlds import invented, lantern_isles
from data.retrieval.passages import Passage, corpus
from data.retrieval.questions import (
    Question,
    answers,
    ask,
    ask_fact,
    ask_otherwise,
    ask_overview,
    ask_owner,
    ask_pair,
    ask_unknown,
)
from data.retrieval.training_pairs import training_isles, training_pairs


@dataclass(frozen=True)
class Search:
    """Questions, and the passages among which their answers lie."""

    questions: list[Question]
    passages: list[Passage]


def training_search(seed: int | str, count: int) -> Search:
    """Questions and all passages of one world; equal seeds give equal searches. A tenth has no answer."""
    rng = random.Random(f"search:{seed}")
    isles = training_isles(rng)
    questions = [ask_unknown(rng, isles) if rng.random() < 0.1 else ask(rng, isles) for _ in range(count)]
    return Search(questions, corpus(rng, isles, talk=True))


def known_isles(count: int, seed: int | str = 0) -> Search:
    """The Lantern Isles; of every question, training has seen the fact but not the wording together with it."""
    rng = random.Random(f"known:{seed}")
    isles = lantern_isles(rng)
    return Search([ask(rng, isles, held_out=True) for _ in range(count)], corpus(rng, isles, talk=True))


def new_isles(count: int, seed: int | str = 0, otherwise: bool = False) -> Search:
    """Thirty islands with names that training never uses. otherwise: asked in wordings that it never uses."""
    rng = random.Random(f"new:{seed}")
    isles = invented(rng, 30, new=True)
    makers = (ask_otherwise,) if otherwise else (ask_fact, ask_fact, ask_owner, ask_pair, ask_overview)
    return Search([rng.choice(makers)(rng, isles) for _ in range(count)], corpus(rng, isles))


def _show() -> None:
    """Print a few pairs to train on, and held-out questions with their answers."""
    for pair in training_pairs("show", 24):
        print(f"{pair.question.text}\n    {pair.partner.text}")
    for search in (known_isles(8), new_isles(8), new_isles(4, otherwise=True)):
        print()
        for question in search.questions:
            print(question.text, *(f"\n    {p.text}" for p in search.passages if answers(p, question)))


if __name__ == "__main__":
    _show()
