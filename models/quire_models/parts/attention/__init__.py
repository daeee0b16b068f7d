"""Queries over the attention parts of a decoder: axes of positions, and keys whose rotation depends on length.

A part states them by its fields, which may hold rotary embeddings (`quire_models.parts.rope_config.Rope`), or by
attributes of its own: `position_axes`, an int, and `kv_cache_variant(prompt_len)`, which returns an int.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from quire_models.parts.rope_config import Rope
from quire_models.parts.state import kv_shape, parts_of


def position_axes(parts: Iterable[Any]) -> int:
    """The largest number of position axes that any of the parts uses."""
    declared = [axes for part in parts if isinstance(axes := getattr(part, "position_axes", None), int)]
    return max([*declared, *(rope.axes for rope in _ropes(parts))], default=1)


def attention_options(blocks: Iterable[Any]) -> frozenset[str]:
    """What the blocks ask of `paged_attention` (`quire_kernels.attention.OPTIONS`), stated by their parts."""
    blocks = tuple(blocks)
    found = [getattr(part, "attention_options", ()) for block in blocks for part in parts_of(block)]
    widths = [kv_shape(block) for block in blocks]
    other = any(shape.value_width != shape.head_dim for shape in widths)
    return frozenset().union(*found, ("value_dim",) if other else ())


def has_kv_cache_variants(parts: Sequence[Any]) -> bool:
    """Whether `kv_cache_variant` may depend on the length of the prompt."""
    return any(hasattr(part, "kv_cache_variant") for part in parts) or any(rope.has_variants for rope in _ropes(parts))


def kv_cache_variant(parts: Iterable[Any], prompt_len: int) -> int:
    """One number for how all parts rotate the keys of a prompt of this length; 0 where none depends on the length."""
    found = [rope.variant(prompt_len) for rope in _ropes(parts)]
    found += [part.kv_cache_variant(prompt_len) for part in parts if hasattr(part, "kv_cache_variant")]
    if len(set(found)) <= 1:
        return found[0] if found else 0
    number = 1
    for variant in found:  # combinations of several variants must differ from each other
        number = (number << 64) + variant
    return number


def _ropes(parts: Iterable[Any]) -> list[Rope]:
    """Each rotary embedding once, in the order of the blocks."""
    return list(dict.fromkeys(rope for part in parts for rope in _within(part)))


def _within(part: Any) -> Iterator[Rope]:
    if not is_dataclass(part):
        return
    for each in fields(part):
        value = getattr(part, each.name)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, Rope):
                yield one
