"""How a check reports a broken rule."""

from __future__ import annotations


def require(condition: object, sentence: str) -> None:
    """Raise AssertionError with the sentence unless `condition` holds; unlike `assert`, also under `python -O`."""
    if not condition:
        raise AssertionError(sentence)
