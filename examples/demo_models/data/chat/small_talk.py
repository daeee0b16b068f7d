"""Question families about people and about what the model does not know."""

from __future__ import annotations

import random

from data.chat import phrases, world
from data.chat.question_kinds import pick
from data.chat.reply_styles import Reply, State, Topic, Turn, one_value, plain

_SYLLABLES = (
    "ba", "be", "bo", "da", "de", "do", "fa", "fe", "ga", "go", "ha", "hi", "jo", "ka",
    "ke", "ki", "ko", "la", "le", "li", "lo", "ma", "me", "mi", "mo", "na", "ne", "no",
    "pa", "pe", "po", "ra", "re", "ri", "ro", "sa", "se", "si", "so", "ta", "te", "ti",
    "to", "va", "ve", "vi", "wa", "we", "wi", "xa", "ya", "yo", "za", "ze", "zu", "bra",
    "cla", "dro", "fri", "gra", "plo", "tri", "sha", "the", "chi",
)  # fmt: skip
_ENDINGS = (
    "n", "r", "l", "s", "m", "nd", "th", "x", "ra", "lia", "via", "dor", "mar", "wick",
    "ton", "land", "stan", "la", "na", "ria", "ville",
)  # fmt: skip
_FIRST_NAMES = (
    "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jack",
    "Kate", "Leo", "Mia", "Noah", "Olga", "Paul", "Rosa", "Sam", "Tom", "Uma", "Vera",
    "Will", "Yara", "Zoe", "Alice", "Bob", "Carol", "Maria", "John", "Peter", "Lucy",
    "Max",
)  # fmt: skip

TELL = {
    "name": ("My name is {value}.", "I am called {value}.", "Call me {value}.", "I'm {value}.",
             "Hi, my name is {value}."),
    "favourite colour": ("My favourite colour is {value}.", "I like {value} the most.",
                         "The colour I love is {value}."),
    "favourite number": ("My favourite number is {value}.", "My lucky number is {value}.",
                         "The number I like most is {value}."),
    "favourite food": ("My favourite food is {value}.", "I love to eat {value}.",
                       "I like to eat {value}."),
}  # fmt: skip
ASK_BACK = (
    "What is my {slot}?", "Do you remember my {slot}?", "Tell me my {slot}.",
    "What was my {slot} again?", "Do you know my {slot}?",
)  # fmt: skip


def invented_name(rng: random.Random) -> str:
    """A name of two or three syllables, built at random."""
    syllables = rng.choices(_SYLLABLES, k=rng.randint(1, 3))
    return ("".join(syllables) + rng.choice(_ENDINGS)).capitalize()


def misspelt_island(rng: random.Random) -> str:
    """The name of an island with one letter exchanged."""
    name = rng.choice(world.ISLAND_NAMES)
    place = rng.randrange(1, len(name))
    return name[:place] + rng.choice("abdefghiklmnoprstuvwz") + name[place + 1 :]


def unknown_place(rng: random.Random) -> str:
    """A place that is not in the world: invented, real or misspelt."""
    draw = rng.random()
    if draw < 0.3:
        return rng.choice(world.REAL_PLACES)
    name = invented_name(rng) if draw < 0.9 else misspelt_island(rng)
    return unknown_place(rng) if name in world.ISLANDS else name


def unknown_place_reply(place: str) -> Reply:
    """The polite refusal; only the plain sentence repeats the unknown name."""
    return Reply(
        f"I don't know {place}. It is not one of the Lantern Isles.",
        "Unknown.",
        {"error": "unknown place"},
        ("unknown place",),
        "I DON'T KNOW THAT PLACE.",
    )


def unknown_island(rng: random.Random, state: State) -> Turn:
    """A question about a place outside the world."""
    place, attribute = unknown_place(rng), rng.choice(world.ATTRIBUTES)
    wordings = phrases.ASK_PROFILE if rng.random() < 0.2 else phrases.ASK_FACT
    _, wording = pick(rng, wordings)
    label = attribute.label if rng.random() < 0.8 else rng.choice(world.UNKNOWN_ATTRIBUTES)
    question = wording.format(label=label, island=place)
    question = question[:1].upper() + question[1:]
    topic = Topic("fact", place, attribute.name) if label == attribute.label else None
    reply = unknown_place_reply(place)
    return Turn("unknown", f"place:{place.lower()}", question, reply, topic=topic)


def unknown_attribute(rng: random.Random, state: State) -> Turn:
    """A question about an island that the fact table cannot answer."""
    island, label = rng.choice(world.ISLAND_NAMES), rng.choice(world.UNKNOWN_ATTRIBUTES)
    _, wording = pick(rng, phrases.ASK_FACT)
    question = wording.format(label=label, island=island)
    sentence = f"I don't know the {label} of {island}."
    reply = Reply(sentence, "Unknown.", {"error": f"unknown {label}"}, (f"unknown {label}",))
    question = question[:1].upper() + question[1:]
    return Turn("unknown", f"unknown:{island}:{label}", question, reply)


def off_topic(rng: random.Random, state: State) -> Turn:
    """A question that has nothing to do with the world."""
    index, wording = pick(rng, phrases.OFF_TOPIC)
    thing = rng.choice(phrases.THINGS)
    key = f"off:{index}:{thing}"
    return Turn("unknown", key, wording.format(thing=thing), plain(phrases.OFF_TOPIC_ANSWER))


def small_talk(rng: random.Random, state: State) -> Turn:
    """Greetings, thanks and questions about the model itself.

    Held out are combinations of wording, opening and closing words: a fixed
    greeting alone could not be unseen and still be answerable.
    """
    answer = rng.choice(list(phrases.SMALL_TALK))
    _, wording = pick(rng, phrases.SMALL_TALK[answer])
    opener = rng.choice(phrases.OPENERS) if rng.random() < 0.5 else ""
    closer = rng.choice(phrases.CLOSERS) if rng.random() < 0.5 else ""
    if closer and wording[-1].isalpha():
        wording += "."
    key = f"talk:{wording}:{opener}:{closer}" if opener or closer else "talk:bare"
    return Turn("small_talk", key, opener + wording + closer, plain(answer))


def tell(rng: random.Random, state: State) -> Turn:
    """The user says something about themselves."""
    slot = rng.choice(tuple(TELL))
    value = {
        "name": rng.choice(_FIRST_NAMES) if rng.random() < 0.4 else invented_name(rng),
        "favourite colour": rng.choice((*world.COLOURS, "pink", "brown", "grey", "gold")),
        "favourite number": str(rng.randint(0, 99)),
        "favourite food": rng.choice(world.DISHES),
    }[slot]
    _, wording = pick(rng, TELL[slot])
    sentence = f"Nice to meet you, {value}!" if slot == "name" else f"I will remember that: {value}."
    reply = Reply(sentence, "OK.", {slot: value}, (f"{slot}: {value}",), "I WILL REMEMBER THAT.")
    key = f"tell:{slot}:{value}"
    return Turn("memory", key, wording.format(value=value), reply, remembers=(slot, value))


def recall(rng: random.Random, state: State) -> Turn:
    """The user asks for something said earlier, or never said."""
    known = [slot for slot in TELL if slot in state.memory]
    slot = rng.choice(known) if known and rng.random() < 0.85 else rng.choice(tuple(TELL))
    index, wording = pick(rng, ASK_BACK)
    question = wording.format(slot=slot)
    if slot not in state.memory:
        sentence = f"You have not told me your {slot} yet."
        reply = Reply(sentence, "Unknown.", {"error": f"unknown {slot}"}, (f"unknown {slot}",))
        return Turn("memory", f"recall:{slot}::{index}", question, reply)
    value = state.memory[slot]
    reply = one_value(f"Your {slot} is {value}.", slot, value)
    if slot == "name":
        reply = Reply(reply.sentence, value, {slot: value}, (value,), "I REMEMBER YOUR NAME.")
    return Turn("memory", f"recall:{slot}:{value}:{index}", question, reply)


def knows_user(state: State) -> bool:
    """True once the user has said something that can be asked back."""
    return bool(state.memory)
