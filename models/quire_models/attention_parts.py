"""What the attention parts of a decoder say of positions, bundled or a plugin's: axes, and keys that turn with length.

A part says it by its fields, which may hold rotary embeddings (`quire_models.scalings.Rope`), or by methods of its own:
`position_axes`, an int, and `kv_variant(prompt_len)`, an int.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from quire_models.scalings import Rope


def position_axes(parts: Iterable[Any]) -> int:
    """How many axes the positions have that any of the parts turns by."""
    own = [axes for part in parts if isinstance(axes := getattr(part, "position_axes", None), int)]
    return max([*own, *(rope.axes for rope in _ropes(parts))], default=1)


def kv_variant(parts: Iterable[Any], prompt_len: int) -> int:
    """One number for how all parts together turn the keys of a prompt of this length; 0 where none depends on it."""
    found = [rope.variant(prompt_len) for rope in _ropes(parts)]
    found += [part.kv_variant(prompt_len) for part in parts if hasattr(part, "kv_variant")]
    if len(set(found)) <= 1:
        return found[0] if found else 0
    number = 1
    for variant in found:  # those of several must not be mistaken for one another
        number = (number << 64) + variant
    return number


def _ropes(parts: Iterable[Any]) -> list[Rope]:
    """Each once, in the order of the blocks."""
    return list(dict.fromkeys(rope for part in parts for rope in _within(part)))


def _within(part: Any) -> Iterator[Rope]:
    if not is_dataclass(part):
        return
    for each in fields(part):
        value = getattr(part, each.name)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, Rope):
                yield one
