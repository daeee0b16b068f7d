"""Questions about a scene, with the one right answer: one function per kind."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from data.images.scenes import COLOURS, NEW_PAIRS, PLACES, SHAPES, Scene, Thing

NUMBERS = ("no", "one", "two", "three", "four", "five", "six")
NO_PICTURE = "I see no picture."

SIDES: Mapping[str, tuple[int, int]] = {"left of": (0, -1), "right of": (0, 1), "above": (-1, 0), "below": (1, 0)}
"""Steps in rows and columns."""


@dataclass(frozen=True, kw_only=True)
class PictureQuestion:
    """What is asked, and the exact text that the model has to produce."""

    kind: str
    text: str
    answer: str


def with_article(noun: str) -> str:
    """The noun with "a" or "an" before it."""
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def plural(shape: str) -> str:
    """More than one of a shape."""
    return f"{shape}es" if shape.endswith("s") else f"{shape}s"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _there_are(number: int, one: str, many: str) -> str:
    verb, noun = ("is", one) if number == 1 else ("are", many)
    return f"There {verb} {NUMBERS[number]} {noun}."


def _reference(scene: Scene, thing: Thing, rng: random.Random) -> str | None:
    """What only this thing is called; None if there is another of its kind."""
    names = []
    if len(scene.alike(shape=thing.shape, colour=thing.colour)) == 1:
        names += [thing.noun] * 2
    if len(scene.alike(shape=thing.shape)) == 1:
        names.append("digit" if thing.is_digit else thing.shape)
    return rng.choice(names) if names else None


def _one_of(scene: Scene, rng: random.Random) -> tuple[Thing, str] | None:
    """Some thing that can be told from all others, and what it is called."""
    named = [(t, name) for t in scene.things if (name := _reference(scene, t, rng))]
    return rng.choice(named) if named else None


def colour(scene: Scene, rng: random.Random) -> tuple[str, str] | None:
    """Of a thing whose shape no other has."""
    things = [t for t in scene.things if len(scene.alike(shape=t.shape)) == 1]
    if not things:
        return None
    thing = rng.choice(things)
    name = "digit" if thing.is_digit else thing.shape
    text = rng.choice((f"What colour is the {name}?", f"Which colour does the {name} have?"))
    return text, f"The {name} is {thing.colour}."


def shape(scene: Scene, rng: random.Random) -> tuple[str, str] | None:
    """Of a thing whose colour no other has."""
    things = [t for t in scene.things if len(scene.alike(colour=t.colour)) == 1 and not t.is_digit]
    if not things:
        return None
    thing = rng.choice(things)
    text = rng.choice((f"Which shape is {thing.colour}?", f"What is the {thing.colour} shape?"))
    return text, f"The {thing.colour} shape is {with_article(thing.shape)}."


def count(scene: Scene, rng: random.Random) -> tuple[str, str]:
    """Of all things, or those of a shape or a colour; now and then of one that isn't there."""
    by = rng.choice(("shape", "shape", "colour", "all"))
    there = rng.random() < 0.8
    if by == "all":
        return "How many things are there?", _there_are(len(scene.things), "thing", "things")
    if by == "colour":
        asked = rng.choice([t.colour for t in scene.things] if there else COLOURS)
        number = len(scene.alike(colour=asked))
        return f"How many {asked} things are there?", _there_are(number, f"{asked} thing", f"{asked} things")
    shapes = [t.shape for t in scene.things if not t.is_digit]
    asked = rng.choice(shapes if there and shapes else SHAPES)
    number = len(scene.alike(shape=asked))
    return f"How many {plural(asked)} are there?", _there_are(number, asked, plural(asked))


def place(scene: Scene, rng: random.Random) -> tuple[str, str] | None:
    """Where a thing is."""
    found = _one_of(scene, rng)
    return found and (f"Where is the {found[1]}?", f"The {found[1]} is {PLACES[found[0].place]}.")


def spot(scene: Scene, rng: random.Random) -> tuple[str, str]:
    """What is at a place."""
    places = [t.place for t in scene.things] if rng.random() < 0.7 else range(len(PLACES))
    asked = rng.choice(places)
    found = [with_article(t.noun) for t in scene.things if t.place == asked]
    return f"What is {PLACES[asked]}?", _sentence(f"{found[0] if found else 'nothing'} is {PLACES[asked]}")


def neighbour(scene: Scene, thing: Thing, side: str) -> Thing | None:
    """The nearest thing of the same row or column on that side."""
    down, right = SIDES[side]
    row, column = thing.row + down, thing.column + right
    while 0 <= row < 3 and 0 <= column < 3:
        for other in scene.things:
            if (other.row, other.column) == (row, column):
                return other
        row, column = row + down, column + right
    return None


def relation(scene: Scene, rng: random.Random) -> tuple[str, str] | None:
    """What is beside a thing."""
    named = [(t, name) for t in scene.things if (name := _reference(scene, t, rng))]
    asked = [(neighbour(scene, t, side), side, name) for t, name in named for side in SIDES]
    if not asked:
        return None
    full = [triple for triple in asked if triple[0]]
    other, side, name = rng.choice(full if full and rng.random() < 0.75 else asked)
    what = with_article(other.noun) if other else "nothing"
    return f"What is {side} the {name}?", _sentence(f"{what} is {side} the {name}")


def digit(scene: Scene, rng: random.Random) -> tuple[str, str] | None:
    """Which digit there is; now and then asked where there is none."""
    found = [t.shape for t in scene.things if t.is_digit]
    if not found and rng.random() < 0.7:
        return None
    text = rng.choice(("Which digit is shown?", "Which digit do you see?"))
    return text, f"The digit is {found[0]}." if found else "There is no digit."


def _presumed(scene: Scene, rng: random.Random) -> tuple[str | None, str]:
    """A colour, or none, and a shape that something may have: often those of the scene, in any combination."""
    near = rng.random() < 0.7
    names = [t.shape for t in scene.things if not t.is_digit] if near else []
    if rng.random() < 0.3:
        return None, rng.choice(names + list(SHAPES) + ["digit"])
    return rng.choice([t.colour for t in scene.things] if near else COLOURS), rng.choice(names or SHAPES)


def presence(scene: Scene, rng: random.Random) -> tuple[str, str]:
    """Whether there is such a thing."""
    thing = rng.choice(scene.things)
    colour, shape = (thing.colour, thing.shape) if rng.random() < 0.4 else _presumed(scene, rng)
    # Were a new pair only ever mentioned where it is absent, the model would learn that it always is.
    while (colour, shape) in NEW_PAIRS and not scene.is_new:
        colour, shape = _presumed(scene, rng)
    there = any(t.is_digit for t in scene.things) if shape == "digit" else scene.alike(colour=colour, shape=shape)
    name = f"{colour} {shape}" if colour else shape
    answer = f"Yes, there is {with_article(name)}." if there else f"No, there is no {name}."
    return f"Is there {with_article(name)}?", answer


def description(scene: Scene, rng: random.Random) -> tuple[str, str]:
    """All things, in reading order."""
    parts = [f"{with_article(t.noun)} {PLACES[t.place]}" for t in scene.things]
    text = rng.choice(("Describe the picture.", "What do you see?", "What is in the picture?"))
    return text, _sentence(" and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts))


KINDS: Mapping[str, Callable[[Scene, random.Random], tuple[str, str] | None]] = {
    kind.__name__: kind for kind in (colour, shape, count, place, spot, relation, digit, presence, description)
}


def ask(kind: str, scene: Scene, rng: random.Random) -> PictureQuestion | None:
    """A question of that kind; None if this scene leaves nothing to ask."""
    asked = KINDS[kind](scene, rng)
    return asked and PictureQuestion(kind=kind, text=asked[0], answer=asked[1])


def ask_all(scene: Scene, rng: random.Random) -> Sequence[PictureQuestion]:
    """One question of every kind that the scene allows, in random order."""
    asked = [question for kind in KINDS if (question := ask(kind, scene, rng))]
    rng.shuffle(asked)
    return asked


def casually(text: str, rng: random.Random) -> str:
    """As people type: without capitals or question mark, or in American spelling."""
    if rng.random() < 0.5:
        text = text.replace("colour", "color")
    if rng.random() < 0.5:
        text = text.rstrip("?.")
    return text.lower() if rng.random() < 0.7 else text
