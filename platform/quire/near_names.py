"""The known name nearest to a misspelt one, for messages that ask "Did you mean …?"."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def near_name(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to `name`, which may have dashes for underscores or the reverse; None: none is close."""
    by_spelling = {word.replace("_", "-").lower(): word for word in known}
    close = get_close_matches(name.replace("_", "-").lower(), list(by_spelling), n=1)
    return by_spelling[close[0]] if close else None
