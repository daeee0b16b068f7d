"""Question families that stand on their own: facts, sums, sorting, small talk.

Every function draws one turn: a wording, the correct answer and the key by which
the question falls into the training or the held-out part.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from data.chat import phrases, world
from data.chat.reply_styles import Reply, State, Topic, Turn, capitalise, one_value

MakeTurn = Callable[[random.Random, State], Turn]
SLOTS = ("name", "favourite colour", "favourite number", "favourite food")


def pick(rng: random.Random, wordings: Sequence[str]) -> tuple[int, str]:
    """Draw a wording together with its index, which becomes part of the key."""
    index = rng.randrange(len(wordings))
    return index, wordings[index]


def attribute_named(name: str) -> world.Attribute:
    """The attribute with this name."""
    return next(a for a in world.ATTRIBUTES if a.name == name)


def user_label(rng: random.Random, attribute: world.Attribute) -> str:
    """The word by which a user calls the attribute, mostly the usual one."""
    return rng.choice(attribute.synonyms) if rng.random() < 0.3 else attribute.label


def fact_reply(island: str, attribute: world.Attribute) -> Reply:
    """The answer that states one attribute of one island."""
    value = world.ISLANDS[island][attribute.name]
    sentence = f"The {attribute.label} of {island} is {attribute.article}{value}."
    return one_value(sentence, attribute.label, value)


def fact(rng: random.Random, state: State) -> Turn:
    """One attribute of one island."""
    island, attribute = rng.choice(world.ISLAND_NAMES), rng.choice(world.ATTRIBUTES)
    index, wording = pick(rng, phrases.ASK_FACT)
    question = capitalise(wording.format(label=user_label(rng, attribute), island=island))
    topic = Topic("fact", island, attribute.name)
    key = f"fact:{island}:{attribute.name}:{index}"
    return Turn("facts", key, question, fact_reply(island, attribute), topic=topic)


def owner(rng: random.Random, state: State) -> Turn:
    """The island that a value belongs to."""
    island = rng.choice(world.ISLAND_NAMES)
    attribute = rng.choice([a for a in world.ATTRIBUTES if a.unique])
    value = attribute.article + world.ISLANDS[island][attribute.name]
    index, wording = pick(rng, phrases.ASK_OWNER)
    question = capitalise(wording.format(label=user_label(rng, attribute), value=value))
    sentence = f"{capitalise(value)} is the {attribute.label} of {island}."
    topic = Topic("fact", island, attribute.name)
    key = f"owner:{island}:{attribute.name}:{index}"
    return Turn("facts", key, question, one_value(sentence, "island", island), topic=topic)


def pair(rng: random.Random, state: State) -> Turn:
    """Two attributes of one island in one question."""
    island = rng.choice(world.ISLAND_NAMES)
    one, two = rng.sample(world.ATTRIBUTES, 2)
    index, wording = pick(rng, phrases.ASK_PAIR)
    question = wording.format(first=user_label(rng, one), second=user_label(rng, two), island=island)
    first, second = (world.ISLANDS[island][a.name] for a in (one, two))
    sentence = f"The {one.label} of {island} is {one.article}{first} and its {two.label} is {two.article}{second}."
    data = {one.label: first, two.label: second}
    items = (f"{one.label}: {first}", f"{two.label}: {second}")
    reply = Reply(sentence, f"{first}, {second}", data, items)
    key = f"pair:{island}:{one.name}:{two.name}:{index}"
    return Turn("facts", key, question, reply, topic=Topic("fact", island, two.name))


def profile(rng: random.Random, state: State) -> Turn:
    """Everything about one island."""
    island = rng.choice(world.ISLAND_NAMES)
    index, wording = pick(rng, phrases.ASK_PROFILE)
    row = world.ISLANDS[island]
    parts = [f"its {a.label} is {a.article}{row[a.name]}" for a in world.ATTRIBUTES]
    sentence = f"{island} is one of the Lantern Isles: {', '.join(parts[:-1])} and {parts[-1]}."
    data = {"island": island} | {a.label: row[a.name] for a in world.ATTRIBUTES}
    items = tuple(f"{a.label}: {row[a.name]}" for a in world.ATTRIBUTES)
    reply = Reply(sentence, ", ".join(row.values()), data, items)
    topic = Topic("fact", island, "capital")
    key = f"profile:{island}:{index}"
    return Turn("facts", key, wording.format(island=island), reply, topic=topic)


def arithmetic_turn(rng: random.Random, sign: str, a: int, b: int, wordings: Sequence[str]) -> Turn:
    """A sum, difference or product in one of the given wordings.

    The key of a sum or difference is its pair of operands, so a held-out one has
    never been seen in any wording, nor with its operands swapped.  A table of
    single-digit products holds no rule that a network could infer, so products
    are held out by operands and wording.
    """
    index, wording = pick(rng, wordings)
    result = {"+": a + b, "-": a - b, "*": a * b}[sign]
    key = f"{sign}:{a}:{b}"
    if sign == "+":
        key = f"+:{min(a, b)}:{max(a, b)}"
    elif sign == "*":
        key = f"*:{a}:{b}:{index}"
    reply = one_value(f"{a} {sign} {b} = {result}", "result", result)
    topic = Topic("number", value=result)
    return Turn("arithmetic", key, wording.format(a=a, b=b), reply, topic=topic)


def operand(rng: random.Random) -> int:
    """A number up to 99; small ones come more often, as they do in real questions."""
    return rng.randint(0, 9) if rng.random() < 0.15 else rng.randint(0, 99)


def arithmetic(rng: random.Random, state: State) -> Turn:
    """A sum or a difference of numbers up to 99, or a product of single digits."""
    sign = rng.choice("+++---*")
    if sign == "*":
        return arithmetic_turn(rng, sign, rng.randint(0, 10), rng.randint(0, 10), phrases.ASK_MULTIPLY)
    wordings = phrases.ASK_ADD if sign == "+" else phrases.ASK_SUBTRACT
    a, b = operand(rng), operand(rng)
    if sign == "-" and rng.random() < 0.6:
        a, b = max(a, b), min(a, b)
    return arithmetic_turn(rng, sign, a, b, wordings)


def compare(rng: random.Random, state: State) -> Turn:
    """Which of two numbers is larger."""
    a, b = rng.sample(range(100), 2)
    _, wording = pick(rng, phrases.ASK_COMPARE)
    yes = a > b
    sentence = f"Yes, {a} is larger than {b}." if yes else f"No, {a} is smaller than {b}."
    reply = one_value(sentence, "answer", "yes" if yes else "no")
    return Turn("arithmetic", f"compare:{a}:{b}", wording.format(a=a, b=b), reply)


def order_reply(lead: str, items: Sequence[str]) -> Reply:
    """An ordered list of numbers or words, introduced by ``lead`` in a sentence."""
    text = ", ".join(items)
    data = [int(i) if i.isdigit() else i for i in items]
    return Reply(f"{lead}: {text}.", text, data, tuple(items))


def sort(rng: random.Random, state: State) -> Turn:
    """Three to five numbers, islands or animals to put in order."""
    pools: tuple[Sequence[int] | Sequence[str], ...] = (range(100), range(100), world.ISLAND_NAMES, world.ANIMALS)
    pool = rng.choice(pools)
    drawn: list[Any] = rng.sample(pool, rng.randint(3, 5))
    numbers = isinstance(pool, range)
    down = rng.random() < 0.35
    wordings: Sequence[str]
    if numbers:
        wordings = phrases.SORT_DOWN_NUMBERS if down else phrases.SORT_UP_NUMBERS
    else:
        wordings = phrases.SORT_DOWN_WORDS if down else phrases.SORT_UP_WORDS
    _, wording = pick(rng, wordings)
    question = wording.format(items=join_items(rng, [str(item) for item in drawn]))
    items = tuple(str(item) for item in sorted(drawn, reverse=down))
    key = "sort:" + ",".join(sorted(items))
    return Turn("sorting", key, question, order_reply("In order", items), topic=Topic("order", items=items))


def join_items(rng: random.Random, items: list[str]) -> str:
    """Write items in a row: mostly with commas, sometimes with a final "and"."""
    if rng.random() < 0.25:
        return f"{', '.join(items[:-1])} and {items[-1]}"
    return (", " if rng.random() < 0.85 else " ").join(items)


def extreme(rng: random.Random, state: State) -> Turn:
    """The largest or the smallest of a few numbers."""
    numbers = rng.sample(range(100), rng.randint(3, 5))
    word = rng.choice(("largest", "smallest"))
    _, wording = pick(rng, phrases.ASK_LARGEST if word == "largest" else phrases.ASK_SMALLEST)
    value = max(numbers) if word == "largest" else min(numbers)
    question = wording.format(items=join_items(rng, [str(n) for n in numbers]))
    key = f"{word}:" + ",".join(str(n) for n in sorted(numbers))
    return Turn("sorting", key, question, one_value(f"The {word} is {value}.", word, value))
