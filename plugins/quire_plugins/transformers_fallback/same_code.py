"""Finds out whether a module's forward pass does the same as another's, by its compiled code.

transformers repeats the code of a module in every family that uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def same_code(first: Callable[..., Any], second: Callable[..., Any]) -> bool:
    """Whether two functions consist of the same instructions, names and constants, apart from their docstrings."""
    one, other = _code(first), _code(second)
    return one is not None and one == other


def _code(function: Any) -> tuple[object, ...] | None:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    constants = code.co_consts[1:] if function.__doc__ else code.co_consts
    # nested code objects differ by file and line
    return code.co_code, code.co_names, tuple(c for c in constants if not hasattr(c, "co_code")), code.co_varnames
