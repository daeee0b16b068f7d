"""Lessons: pairs of texts that the demo embedder learns to bring together."""

from __future__ import annotations

import random
from dataclasses import dataclass

from data.chat import world
from data.chat.reply_styles import is_held_out
from data.retrieval.invented_worlds import Isles, invented, lantern_isles
from data.retrieval.passages import Passage, one_fact, overview, two_facts
from data.retrieval.questions import KINDS, Question, ask

_ISLES_IN_A_BATCH = 24


def training_isles(rng: random.Random) -> Isles:
    """Part of the Lantern Isles, or a world that was never seen before and never comes again."""
    if rng.random() < 0.15:
        return lantern_isles(rng, _ISLES_IN_A_BATCH)
    return invented(rng, _ISLES_IN_A_BATCH, new=False)


def telling(rng: random.Random, isles: Isles, question: Question) -> Passage:
    """A passage that answers a question, and as a rule tells no more."""
    (island, first), *more = sorted(question.asks)
    if island == "talk":
        return Passage(first, question.asks)
    if len(more) + 1 == len(world.ATTRIBUTES) or rng.random() < 0.1:
        return overview(rng, isles, island)
    asked = [a for a in world.ATTRIBUTES if (island, a.name) in question.asks]
    if more or rng.random() < 0.15:
        rest = [a for a in world.ATTRIBUTES if a not in asked]
        one, two = rng.sample([*asked, *rng.sample(rest, 2 - len(asked))], 2)
        return two_facts(rng, isles, island, one, two)
    return one_fact(rng, isles, island, *asked)


def paraphrase(rng: random.Random, isles: Isles, question: Question) -> Question:
    """Another question of the same sense, or the same one when none is drawn soon."""
    make = next(m for m in KINDS if m.__name__ == f"ask_{question.sense.split(':')[0]}")
    island = next(iter(question.asks))[0]
    home = {island: isles[island]} if island in isles else isles
    for _ in range(100):
        other = make(rng, home)
        if other.sense == question.sense and other.text != question.text and not is_held_out(other.key):
            return other
    return question


@dataclass(frozen=True)
class Pair:
    """A question with its partner: a passage that answers it, or a question that means the same."""

    question: Question
    partner: Passage | Question

    def suits(self, question: Question) -> bool:
        """Whether the partner is one for another question as well, and so no wrong answer to it."""
        covered = self.partner.tells if isinstance(self.partner, Passage) else self.partner.asks
        return question.asks <= covered


def training_pairs(seed: int | str, count: int) -> list[Pair]:
    """Pairs of one world; equal seeds give equal pairs. No question is held out."""
    rng = random.Random(f"pairs:{seed}")
    isles = training_isles(rng)
    pairs = []
    for _ in range(count):
        question = ask(rng, isles)
        partner = paraphrase(rng, isles, question) if rng.random() < 0.2 else telling(rng, isles, question)
        pairs.append(Pair(question, partner))
    return pairs
