"""What evaluations share: asking a server, and the shares of right answers."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from openai import OpenAI

Asked, Answer = TypeVar("Asked"), TypeVar("Answer")


def ask_all(
    base_url: str, parallel: int, asked: Sequence[Asked], ask: Callable[[OpenAI, Asked], Answer]
) -> list[Answer]:
    """What an OpenAI-compatible server answers, so many requests at a time."""
    from openai import OpenAI

    client = OpenAI(base_url=base_url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    with ThreadPoolExecutor(parallel) as pool:
        return list(pool.map(lambda one: ask(client, one), asked))


def shares(verdicts: Iterable[tuple[str, bool]]) -> dict[str, float]:
    """The share of right answers for each kind, and over all as ``overall``. A verdict: the kind, and whether right."""
    found: dict[str, list[bool]] = defaultdict(list)
    for kind, is_right in verdicts:
        found[kind].append(is_right)
    every = [is_right for of_kind in found.values() for is_right in of_kind]
    return {kind: sum(of_kind) / len(of_kind) for kind, of_kind in found.items()} | {"overall": sum(every) / len(every)}


def report(shares: dict[str, float]) -> str:
    """The shares on one line each."""
    return "\n".join(f"{name:<12} {100 * share:6.2f} %" for name, share in shares.items())
