"""Which implementations of ops may run inside a captured step (a CUDA graph)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def capturable(function: F) -> F:
    """States of an op, or of a function that binds one: with one token a row its launches depend on shapes alone.

    It then reads nothing of a step in CPU memory but `max_context`, does not wait for the device, gives any finite
    result for rows whose context is 0, and stores nothing for slots below 0: rows that fill a captured step up. What it
    binds may say by an attribute `capturable` that it is not.
    """
    function.capturable = True  # type: ignore[attr-defined]
    return function


def is_capturable(function: Callable[..., Any]) -> bool:
    return getattr(function, "capturable", False)
