"""Arguments of the Python API that may be one thing or many, brought into one shape.

It checks only how many there are; what each one is, is checked where it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.errors import BadRequest
from quire.text.inputs import PromptInput


def as_prompts(prompts: Any) -> list[PromptInput]:
    """One prompt or many as a list."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise BadRequest(
            f"`prompts` must be a prompt (text, token ids or a map) or a list of them; got {type(prompts).__name__}.",
            "prompts",
        )
    if prompts and all(isinstance(item, int) for item in prompts):
        return [prompts]
    return list(prompts)


def as_conversations(messages: Any) -> list[Any]:
    """One conversation or many as a list."""
    if isinstance(messages, Sequence) and messages and all(isinstance(item, Sequence) for item in messages):
        return list(messages)
    return [messages]


def one_each(param: str, value: Any, count: int, types: tuple[type, ...]) -> Sequence[Any]:
    """`value` for each of `count` prompts: one for all, or a list of as many."""
    if isinstance(value, types):
        return [value] * count
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(v, types) for v in value):
        names = " or ".join(kind.__name__ for kind in types)
        raise BadRequest(f"`{param}` must be {names}, or a list of them.", param)
    if len(value) != count:
        raise BadRequest(f"`{param}` has {len(value)} entries for {count} prompts.", param)
    return value
