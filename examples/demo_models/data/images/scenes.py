"""What pictures show, without how it is drawn: coloured shapes and digits, each in one of nine places.

Two things are held out of training: a tenth of all scenes, by the hash of what they show, and every scene with one of a
few pairs of colour and shape, which training never shows nor mentions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from data.chat.reply_styles import is_held_out

COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "black")
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
DIGITS = tuple("0123456789")
PLACES = (
    "at the top left",
    "at the top",
    "at the top right",
    "on the left",
    "in the middle",
    "on the right",
    "at the bottom left",
    "at the bottom",
    "at the bottom right",
)
NEW_PAIRS = frozenset({("green", "star"), ("purple", "circle"), ("orange", "cross"), ("black", "square")})
"""Colours and shapes that training never shows together."""


@dataclass(frozen=True, kw_only=True, order=True)
class Thing:
    """A shape or digit of a colour, at `PLACES[place]`."""

    place: int
    shape: str
    colour: str

    @property
    def is_digit(self) -> bool:
        """Whether it is a digit."""
        return self.shape in DIGITS

    @property
    def noun(self) -> str:
        """As in "the red circle"."""
        return f"{self.colour} {self.shape}"

    @property
    def row(self) -> int:
        """0 at the top."""
        return self.place // 3

    @property
    def column(self) -> int:
        """0 on the left."""
        return self.place % 3


@dataclass(frozen=True)
class Scene:
    """Its things in reading order, no two in one place, one digit at most."""

    things: tuple[Thing, ...]

    @property
    def key(self) -> str:
        """What it shows; decides whether it is held out."""
        return "scene:" + ",".join(f"{t.place} {t.noun}" for t in self.things)

    @property
    def is_new(self) -> bool:
        """Whether it has a pair of colour and shape that training never shows."""
        return any((t.colour, t.shape) in NEW_PAIRS for t in self.things)

    def alike(self, *, colour: str | None = None, shape: str | None = None) -> list[Thing]:
        """Its things of a colour, of a shape, or both."""
        return [t for t in self.things if colour in (None, t.colour) and shape in (None, t.shape)]


def random_scene(rng: random.Random) -> Scene:
    """One to six things. They are drawn from few shapes and colours, so that there is something to count."""
    count = rng.choices((1, 2, 3, 4, 5, 6), weights=(2, 4, 5, 5, 4, 3))[0]
    shapes = rng.sample(SHAPES, rng.choice((1, 2, 3, 6)))
    colours = rng.sample(COLOURS, rng.choice((1, 2, 4, 7)))
    drawn = [rng.choice(shapes) for _ in range(count)]
    if rng.random() < 0.4:
        drawn[0] = rng.choice(DIGITS)
    places = rng.sample(range(len(PLACES)), count)
    things = (Thing(place=p, shape=s, colour=rng.choice(colours)) for p, s in zip(places, drawn, strict=True))
    return Scene(tuple(sorted(things)))


def crowded_scene(rng: random.Random) -> Scene:
    """Up to nine things of any kind, to see and not to ask about: there may be several digits."""
    things: list[Thing] = []
    for place in sorted(rng.sample(range(len(PLACES)), rng.randint(3, len(PLACES)))):
        pair = rng.choice(COLOURS), rng.choice(DIGITS if rng.random() < 0.4 else SHAPES)
        while pair in NEW_PAIRS:
            pair = rng.choice(COLOURS), rng.choice(SHAPES)
        things.append(Thing(place=place, shape=pair[1], colour=pair[0]))
    return Scene(tuple(things))


def training_scenes(rng: random.Random, *, crowded: bool = False) -> Iterator[Scene]:
    """An endless stream without anything that is held out."""
    while True:
        scene = crowded_scene(rng) if crowded else random_scene(rng)
        if not scene.is_new and not is_held_out(scene.key):
            yield scene


def held_out_scenes(rng: random.Random, *, new: bool = False) -> Iterator[Scene]:
    """An endless stream of scenes that training never shows; new: each with a new pair of colour and shape."""
    while True:
        scene = random_scene(rng)
        if scene.is_new == new and is_held_out(scene.key):
            yield scene
