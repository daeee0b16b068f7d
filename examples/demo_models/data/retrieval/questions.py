"""Questions of the retrieval demos: what they ask for, what they mean, and the split.

A passage answers a question when it tells all that is asked. That is known of every text, so nothing here is judged by
how texts look.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from data.chat import phrases, world
from data.chat.question_kinds import pick, user_label
from data.chat.reply_styles import State, capitalise, is_held_out
from data.chat.small_talk import small_talk, unknown_place
from data.retrieval import fact_templates
from data.retrieval.invented_worlds import Isles
from data.retrieval.passages import Fact, Passage, facts_of, value_of


@dataclass(frozen=True)
class Question:
    """A text and what it asks for. Questions of one `sense` mean the same; the split is decided by the `key`."""

    text: str
    asks: frozenset[Fact]
    sense: str
    key: str


def answers(passage: Passage, question: Question) -> bool:
    """Whether a passage tells all that is asked."""
    return question.asks <= passage.tells


def ask_fact(rng: random.Random, isles: Isles) -> Question:
    """What an attribute of an island is."""
    island, attribute = rng.choice(list(isles)), rng.choice(world.ATTRIBUTES)
    index, wording = pick(rng, (*phrases.ASK_FACT, *fact_templates.ASK[attribute.name]))
    text = wording.format(island=island, label=user_label(rng, attribute))
    sense = f"fact:{island}:{attribute.name}"
    return Question(capitalise(text), facts_of(island, attribute), sense, f"{sense}:{index}")


def ask_otherwise(rng: random.Random, isles: Isles) -> Question:
    """What an attribute of an island is, in a wording that training never uses."""
    island, attribute = rng.choice(list(isles)), rng.choice(world.ATTRIBUTES)
    index, wording = pick(rng, fact_templates.ASK_OTHERWISE)
    sense = f"fact:{island}:{attribute.name}"
    text = wording.format(island=island, label=user_label(rng, attribute))
    return Question(text, facts_of(island, attribute), sense, f"otherwise:{sense}:{index}")


def ask_owner(rng: random.Random, isles: Isles) -> Question:
    """Which island a value belongs to."""
    island, attribute = rng.choice(list(isles)), rng.choice([a for a in world.ATTRIBUTES if a.unique])
    index, wording = pick(rng, (*phrases.ASK_OWNER, *fact_templates.ASK_OWNER[attribute.name]))
    text = wording.format(value=value_of(isles, island, attribute), label=user_label(rng, attribute))
    sense = f"owner:{island}:{attribute.name}"
    return Question(capitalise(text), facts_of(island, attribute), sense, f"{sense}:{index}")


def ask_pair(rng: random.Random, isles: Isles) -> Question:
    """Two attributes of an island at once."""
    island, (one, two) = rng.choice(list(isles)), rng.sample(world.ATTRIBUTES, 2)
    index, wording = pick(rng, phrases.ASK_PAIR)
    text = wording.format(island=island, first=user_label(rng, one), second=user_label(rng, two))
    sense = f"pair:{island}:{':'.join(sorted((one.name, two.name)))}"
    return Question(text, facts_of(island, one, two), sense, f"{sense}:{index}")


def ask_overview(rng: random.Random, isles: Isles) -> Question:
    """All of an island."""
    island = rng.choice(list(isles))
    index, wording = pick(rng, phrases.ASK_PROFILE)
    sense = f"overview:{island}"
    return Question(wording.format(island=island), facts_of(island, *world.ATTRIBUTES), sense, f"{sense}:{index}")


def ask_talk(rng: random.Random, isles: Isles) -> Question:
    """Small talk of the chat model."""
    turn = small_talk(rng, State())
    answer = turn.reply.sentence
    return Question(turn.question, frozenset({("talk", answer)}), f"talk:{answer}", turn.key)


def ask_unknown(rng: random.Random, isles: Isles) -> Question:
    """What no passage tells: an attribute that is not recorded, or one of an island that lies elsewhere."""
    attribute, label = rng.choice(world.ATTRIBUTES), rng.choice(world.UNKNOWN_ATTRIBUTES)
    _, wording = pick(rng, phrases.ASK_FACT)
    island, asked = rng.choice(list(isles)), label
    if rng.random() < 0.5:
        island, asked = unknown_place(rng), attribute.label
    sense = f"unknown:{island}:{asked}"
    text = wording.format(island=island, label=asked)
    return Question(capitalise(text), frozenset({(island, f"{asked}, which is unknown")}), sense, sense)


KINDS: dict[Callable[[random.Random, Isles], Question], float] = {
    ask_fact: 10,
    ask_owner: 5,
    ask_pair: 1.5,
    ask_overview: 1,
    ask_talk: 1.5,
}


def ask(rng: random.Random, isles: Isles, held_out: bool = False) -> Question:
    """A question of any kind, on one side of the split."""
    while True:
        question = rng.choices(list(KINDS), list(KINDS.values()))[0](rng, isles)
        if is_held_out(question.key) == held_out:
            return _casually(rng, question)


def _casually(rng: random.Random, question: Question) -> Question:
    """A question with what people add or leave out."""
    opener = rng.choice(phrases.OPENERS) if rng.random() < 0.15 else ""
    text = question.text.rstrip("?.!") if rng.random() < 0.15 else question.text
    return replace(question, text=opener + text)
