"""Passages of the retrieval demos: sentences that tell facts of an island."""

from __future__ import annotations

import random
from dataclasses import dataclass

from data.chat import phrases, world
from data.chat.question_kinds import pick, user_label
from data.chat.reply_styles import capitalise
from data.retrieval import fact_templates
from data.retrieval.invented_worlds import Isles

Fact = tuple[str, str]
"""Island and attribute; or "talk" and an answer of small talk."""


@dataclass(frozen=True)
class Passage:
    """A text and what it tells."""

    text: str
    tells: frozenset[Fact]


def facts_of(island: str, *attributes: world.Attribute) -> frozenset[Fact]:
    """Some facts of one island."""
    return frozenset((island, attribute.name) for attribute in attributes)


def value_of(isles: Isles, island: str, attribute: world.Attribute) -> str:
    """The value of an attribute, as sentences name it."""
    return attribute.article + isles[island][attribute.name]


def one_fact(rng: random.Random, isles: Isles, island: str, attribute: world.Attribute) -> Passage:
    """A sentence that tells one fact."""
    _, wording = pick(rng, (*fact_templates.TELL_ANY, *fact_templates.TELL[attribute.name]))
    text = wording.format(island=island, label=user_label(rng, attribute), value=value_of(isles, island, attribute))
    return Passage(capitalise(text), facts_of(island, attribute))


def two_facts(rng: random.Random, isles: Isles, island: str, one: world.Attribute, two: world.Attribute) -> Passage:
    """A sentence that tells two facts of an island."""
    _, wording = pick(rng, fact_templates.TELL_TWO)
    text = wording.format(
        island=island,
        first=one.label,
        value=value_of(isles, island, one),
        second=two.label,
        other=value_of(isles, island, two),
    )
    return Passage(text, facts_of(island, one, two))


def overview(rng: random.Random, isles: Isles, island: str) -> Passage:
    """A sentence that tells all of an island."""
    attributes = rng.sample(world.ATTRIBUTES, len(world.ATTRIBUTES))
    parts = [f"the {attribute.label} is {value_of(isles, island, attribute)}" for attribute in attributes]
    text = fact_templates.OVERVIEW.format(island=island, facts=f"{', '.join(parts[:-1])} and {parts[-1]}")
    return Passage(text, facts_of(island, *world.ATTRIBUTES))


def corpus(rng: random.Random, isles: Isles, talk: bool = False) -> list[Passage]:
    """Six passages for each island: four of a fact, one of the other two, an overview. talk: small talk beside them."""
    passages = []
    for island in isles:
        *single, one, two = rng.sample(world.ATTRIBUTES, len(world.ATTRIBUTES))
        passages += [one_fact(rng, isles, island, attribute) for attribute in single]
        passages += [two_facts(rng, isles, island, one, two), overview(rng, isles, island)]
    if talk:
        passages += [Passage(answer, frozenset({("talk", answer)})) for answer in phrases.SMALL_TALK]
    return passages
