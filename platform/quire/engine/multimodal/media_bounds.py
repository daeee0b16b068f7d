"""Chunk ends and prefix cache hits that do not cut a medium, for models that compute each medium in a single step.

A chunk may begin inside a medium: the part in the prefix cache was computed from the whole medium.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.types import Media


def align_to_media(media: Sequence[Media], start: int, end: int, max_tokens: int) -> int:
    """The end of a chunk from `start`, moved from `end` out of the medium that it would cut.

    It moves before the medium, or behind it if the chunk begins in it; then `start` if the chunk would have more than
    `max_tokens` tokens.
    """
    across = next((medium for medium in media if medium.start < end < medium.start + medium.length), None)
    if across is None or end == start:
        return end
    if across.start > start:
        return across.start
    behind = across.start + across.length
    return behind if behind - start <= max_tokens else start


def trim_hits_to_media(media: Sequence[Media], num_pages: int, page_size: int) -> int:
    """How many of the first `num_pages` cached pages come before any medium that the last of them would cut."""
    for medium in reversed(media):
        if medium.start < num_pages * page_size < medium.start + medium.length:
            num_pages = medium.start // page_size
    return num_pages
