"""Texts with repetition: what a user asks for, and what a model that does it well writes.

`edits`: a Python file, asked back with a name changed, a line taken out and lines added. `extractions`: sentences about
orders, asked back as JSON. `unrelated`: random tokens, and an answer of others. All are made from seeds.
"""

from __future__ import annotations

import inspect
import random
import re
import shlex
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

Tokenize = Callable[[str], list[int]]
LINES = 90


@dataclass(frozen=True)
class Dialogue:
    """prompt: token ids. answer: those that a model writes after it."""

    prompt: list[int]
    answer: list[int]


def edits(tokenize: Tokenize, count: int) -> list[Dialogue]:
    import argparse
    import bisect
    import calendar
    import csv
    import difflib
    import heapq
    import queue
    import sched

    known: tuple[ModuleType, ...] = (textwrap, queue, heapq, csv, difflib, calendar, argparse, shlex, sched, bisect)
    return [_edit(tokenize, inspect.getsource(known[number % len(known)]), number) for number in range(count)]


def _edit(tokenize: Tokenize, source: str, seed: int) -> Dialogue:
    rng = random.Random(seed)
    lines = source.splitlines()
    begin = rng.randrange(max(1, len(lines) - LINES))
    before = lines[begin : begin + LINES]
    names = re.findall(r"\b[a-z_]{4,}\b", "\n".join(before))
    name = max(sorted(set(names)), key=names.count)
    after = re.sub(rf"\b{name}\b", f"new_{name}", "\n".join(before)).splitlines()
    for _ in range(3):
        del after[rng.randrange(len(after))]
        after.insert(rng.randrange(len(after)), f"    # changed in version {rng.randrange(1, 9)}.{rng.randrange(20)}")
    asked = f"Rename {name} to new_{name} in this file, and write the whole file:\n"
    return Dialogue(tokenize(asked + "\n".join(before) + "\n\nAnswer:\n"), tokenize("\n".join(after) + "\n"))


def extractions(tokenize: Tokenize, count: int) -> list[Dialogue]:
    return [_extraction(tokenize, random.Random(1000 + number)) for number in range(count)]


def _extraction(tokenize: Tokenize, rng: random.Random) -> Dialogue:
    words = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "jetty", "knoll", "maple")
    sentences, rows = [], []
    for _ in range(16):
        first, last, city, item = (rng.choice(words).capitalize() for _ in range(4))
        number, amount = rng.randrange(10_000, 99_999), f"{rng.randrange(5, 900)}.{rng.randrange(100):02}"
        name, street = f"{first} {last}", f"{rng.randrange(1, 200)} {city} Street"
        sentences.append(
            f"On the {rng.randrange(1, 29)}th {name}, who lives at {street}, ordered a {item} lamp for {amount} euros; "
            f"the order has the number {number}."
        )
        rows.append(
            f'  {{"name": "{name}", "address": "{street}", "item": "{item} lamp", "price": {amount}, '
            f'"order": {number}}}'
        )
    asked = "Write these orders as a JSON array of name, address, item, price and order:\n"
    return Dialogue(tokenize(asked + "\n".join(sentences) + "\n\n"), tokenize("[\n" + ",\n".join(rows) + "\n]\n"))


def unrelated(tokenize: Tokenize, count: int) -> list[Dialogue]:
    """Nothing repeats, but for chance."""
    found = []
    for number in range(count):
        rng = random.Random(2000 + number)
        ids = [rng.randint(10, 7000) for _ in range(64 + 400)]
        found.append(Dialogue(ids[:64], ids[64:]))
    return found
