"""Question families that only make sense after an earlier turn."""

from __future__ import annotations

import random
from dataclasses import replace

from data.chat import phrases, world
from data.chat.question_kinds import (
    MakeTurn,
    arithmetic_turn,
    attribute_named,
    fact_reply,
    order_reply,
    pick,
    user_label,
)
from data.chat.reply_styles import STYLES, State, Topic, Turn, one_value
from data.chat.small_talk import unknown_place, unknown_place_reply

FAMILY = "follow_ups"


def _topic(state: State) -> Topic:
    """The topic of the last turn; only called where there is one."""
    assert state.last is not None
    assert state.last.topic is not None
    return state.last.topic


def next_island(rng: random.Random, state: State) -> Turn:
    """The same attribute of another island, or of a place outside the world."""
    attribute = attribute_named(_topic(state).attribute)
    index, wording = pick(rng, phrases.FOLLOW_ISLAND)
    if rng.random() < 0.15:
        place = unknown_place(rng)
        topic = Topic("fact", place, attribute.name)
        key, reply = f"place:{place.lower()}", unknown_place_reply(place)
        return Turn(FAMILY, key, wording.format(island=place), reply, topic=topic)
    island = rng.choice(world.ISLAND_NAMES)
    topic = Topic("fact", island, attribute.name)
    key = f"next:{island}:{attribute.name}:{index}"
    question = wording.format(island=island)
    return Turn(FAMILY, key, question, fact_reply(island, attribute), topic=topic)


def next_attribute(rng: random.Random, state: State) -> Turn:
    """Another attribute of the same place."""
    place, attribute = _topic(state).island, rng.choice(world.ATTRIBUTES)
    index, wording = pick(rng, phrases.FOLLOW_ATTRIBUTE)
    question = wording.format(label=user_label(rng, attribute))
    known = place in world.ISLANDS
    reply = fact_reply(place, attribute) if known else unknown_place_reply(place)
    key = f"its:{place}:{attribute.name}:{index}" if known else f"place:{place.lower()}"
    topic = Topic("fact", place, attribute.name)
    return Turn(FAMILY, key, question, reply, topic=topic)


def next_sum(rng: random.Random, state: State) -> Turn:
    """Calculate on with the last result."""
    value, b = _topic(state).value, rng.randint(0, 99)
    sign = rng.choice("+-")
    if sign == "-" and rng.random() < 0.6:
        b = rng.randint(0, value)
    wordings = phrases.FOLLOW_ADD if sign == "+" else phrases.FOLLOW_SUBTRACT
    return replace(arithmetic_turn(rng, sign, value, b, wordings), family=FAMILY)


def reverse(rng: random.Random, state: State) -> Turn:
    """The last list the other way round."""
    items = _topic(state).items[::-1]
    _, wording = pick(rng, phrases.FOLLOW_REVERSE)
    key = "reverse:" + ",".join(sorted(items))
    topic = Topic("order", items=items)
    return Turn(FAMILY, key, wording, order_reply("In reverse order", items), topic=topic)


def about_list(rng: random.Random, state: State) -> Turn:
    """The first item, the last item or the length of the last list."""
    topic = _topic(state)
    what = rng.choice(("first", "last", "count"))
    wordings = {
        "first": phrases.FOLLOW_FIRST,
        "last": phrases.FOLLOW_LAST,
        "count": phrases.FOLLOW_COUNT,
    }[what]
    _, wording = pick(rng, wordings)
    key = f"{what}:" + ",".join(sorted(topic.items))
    if what == "count":
        count = len(topic.items)
        reply = one_value(f"There are {count}.", "count", count)
    else:
        item = topic.items[0 if what == "first" else -1]
        reply = one_value(f"The {what} is {item}.", what, item)
    return Turn(FAMILY, key, wording, reply, topic=topic)


def restyle(rng: random.Random, state: State) -> Turn:
    """The last answer once more, written differently."""
    assert state.last is not None
    last = state.last
    style = rng.choice([s for s in STYLES if s != last.style])
    _, wording = pick(rng, phrases.STYLE_FOLLOW[style])
    key = f"restyle:{style}:{last.key}"
    return Turn("formats", key, wording, last.reply, style=style, topic=last.topic)


def follow_up_makers(state: State) -> list[MakeTurn]:
    """The follow-ups that fit the last turn, with repetitions as weights."""
    if state.last is None or state.last.topic is None:
        return []
    topic = state.last.topic
    if topic.kind == "fact":
        makers: list[MakeTurn] = [next_island, next_island, next_attribute, next_attribute]
        return [*makers, restyle, restyle] if topic.island in world.ISLANDS else makers
    if topic.kind == "order":
        return [reverse, about_list, restyle]
    # A chain of sums stays within the two digits that stand-alone sums practise.
    return [next_sum, next_sum, restyle] if 0 <= topic.value <= 99 else [restyle]
