"""What tools can do: for each skill the ways to name, describe, ask, and answer from the result.

A line of words is split at "|". Braces stand for the values of a request or, in answers, of its result too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from data.tools import tool_words as words

Value = str | int | float | bool
Values = Mapping[str, Value]


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A parameter: how it may be named and described, and what stands in it.

    written: for a parameter with few values, these as users say them and then as schemas may write them.
    """

    names: str
    about: str
    draw: Callable[[random.Random], Value] | None = None
    written: tuple[tuple[Value, ...], ...] = ()
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class Gift:
    """A field of a result: how it may be named, and its value for the arguments that were given."""

    names: str
    make: Callable[[random.Random, Values], Value]


@dataclass(frozen=True, kw_only=True)
class Skill:
    """One thing that tools can do. asks and again: how users ask, and ask once more with another value."""

    verbs: str
    nouns: str
    about: str
    slots: Mapping[str, Slot]
    asks: str
    gives: Mapping[str, Gift]
    answer: str
    again: str = ""
    both: str = ""
    """How users ask with two values of the first slot at once; the second one is {other}."""


def choice(names: str, about: str, *written: str, optional: bool = False) -> Slot:
    return Slot(names=names, about=about, written=tuple(tuple(way.split("|")) for way in written), optional=optional)


def drawn(names: str, pool: str) -> Gift:
    options = pool.split("|")
    return Gift(names=names, make=lambda rng, values: rng.choice(options))


def tenths(low: int, high: int) -> Callable[[random.Random, Values], Value]:
    return lambda rng, values: rng.randint(low, high) if rng.random() < 0.5 else rng.randint(10 * low, 10 * high) / 10


def some_time(rng: random.Random, values: Values) -> Value:
    return words.clock(rng)


A = Slot(names="a|x|first|left|m|number1", about="First number.|The first number.", draw=words.number)
B = Slot(names="b|y|second|right|n|number2", about="Second number.|The second number.", draw=words.number)
PLACE = "city|place|location|town|where|destination|area"
ABOUT_PLACE = "The place.|Name of the city.|Where.|City or island.|The place to look up."
DAYS = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"
DAY = choice(
    "day|weekday|date|on_day|when", "The day.|Day of the week.", DAYS, DAYS.lower(), "Mon|Tue|Wed|Thu|Fri|Sat|Sun"
)
LANGUAGE = choice(
    "language|target|to|lang|target_language",
    "The language to translate into.|Target language.",
    "French|German|Spanish|Dutch|Italian|Polish",
    "french|german|spanish|dutch|italian|polish",
    "fr|de|es|nl|it|pl",
)
UNITS = "metres|feet|miles|kilometres|pounds|kilograms|litres|gallons|inches|yards"
SHORT_UNITS = "m|ft|mi|km|lb|kg|l|gal|in|yd"
SWITCH = Slot(
    names="state|on|power|switch|status",
    about="On or off.|The wanted state.",
    written=(("on", "off"), ("ON", "OFF"), (True, False)),
)
