"""Keeps the models of one HTTP exchange in memory until it ends."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from types import TracebackType
from typing import Any

LEASES = "quire.leases"
"""Key in the scope of an exchange: its `Leases`."""


class Leases:
    """What to call when the exchange ends: each call says that a model is used once less."""

    def __init__(self) -> None:
        self._ends: list[Callable[[], None]] = []

    def add(self, end: Callable[[], None]) -> None:
        """Have `end` called once, at the end."""
        self._ends.append(end)

    def __enter__(self) -> Leases:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        while self._ends:
            self._ends.pop()()


def leases_of(scope: MutableMapping[str, Any]) -> Leases:
    """The leases of an exchange, which the application ends with it."""
    found: Leases = scope[LEASES]
    return found
