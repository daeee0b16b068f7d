"""How the checks say no. It knows none of them."""

from __future__ import annotations


def demand(condition: object, sentence: str) -> None:
    """Raise AssertionError unless `condition` holds; unlike `assert`, also under `python -O`."""
    if not condition:
        raise AssertionError(sentence)
