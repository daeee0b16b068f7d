"""Worlds for the retrieval demos: the Lantern Isles, and invented ones of the same shape.

A model that finds passages by meaning should not depend on having met the names in them. So training draws new worlds
all the time, and the tenth of all invented names that is held out makes worlds in which every name is new.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from data.chat import world
from data.chat.reply_styles import is_held_out
from data.chat.small_talk import invented_name

Isles = Mapping[str, Mapping[str, str]]
"""By island, then by the name of the attribute."""

_FOODS = tuple(sorted({dish.split()[0] for dish in world.DISHES}))
_COURSES = tuple(sorted({dish.split()[1] for dish in world.DISHES}))
_FLOWERS = tuple(sorted(row["flower"] for row in world.ISLANDS.values()))
_KNOWN = {name for island, row in world.ISLANDS.items() for name in (island, row["capital"], row["river"])}


def is_new_name(name: str) -> bool:
    """True for invented names that training never uses."""
    return is_held_out(f"name:{name.lower()}")


def _names(rng: random.Random, count: int, new: bool) -> list[str]:
    """Different invented names, all of them new or none."""
    names: dict[str, None] = {}
    while len(names) < count:
        name = invented_name(rng)
        if is_new_name(name) == new and name not in _KNOWN:
            names[name] = None
    return list(names)


def invented(rng: random.Random, count: int, new: bool) -> Isles:
    """A world of `count` islands, 30 at most; new: of names that are held out."""
    names = _names(rng, 3 * count, new)
    dishes = rng.sample([f"{food} {course}" for food in _FOODS for course in _COURSES], count)
    animals, flowers = rng.sample(world.ANIMALS, count), rng.sample(_FLOWERS, count)
    colours = rng.choices(world.COLOURS, k=count)
    values = (names[count : 2 * count], names[2 * count :], dishes, animals, flowers, colours)
    keys = [attribute.name for attribute in world.ATTRIBUTES]
    return {island: dict(zip(keys, row, strict=True)) for island, *row in zip(names[:count], *values, strict=True)}


def lantern_isles(rng: random.Random, count: int = 30) -> Isles:
    """The Lantern Isles, or some of them."""
    return {island: world.ISLANDS[island] for island in rng.sample(world.ISLAND_NAMES, count)}
