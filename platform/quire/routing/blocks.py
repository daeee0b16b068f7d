"""Keys of the prefixes of a prompt: a hash for every full block of tokens, chained like the hashes of KV pages.

Equal keys mean the same tokens, media, model, adapters and cache salt from the first token on. A block has several
pages, since a key costs time for each request and the last pages of a prefix matter little.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from quire.types import Media, Request

BLOCK_TOKENS = 64
"""Tokens of a block."""

KEY_BYTES = 12


def block_keys(model: str, request: Request, generations: Sequence[int]) -> list[bytes]:
    """A key for each full block of the prompt. generations: of the request's adapters, counting their loads."""
    uses = [
        (use.ref.name, use.weight, generation) for use, generation in zip(request.adapters, generations, strict=True)
    ]
    key = blake2b(repr((model, uses, request.cache_salt)).encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES)
    try:
        tokens = memoryview(array("q", request.prompt.token_ids)).cast("B")
    except (OverflowError, TypeError):  # no token ids; the request will be refused
        return []
    parent, media = key.digest(), request.prompt.media
    size, keys = 8 * BLOCK_TOKENS, []
    for start in range(0, len(tokens) - size + 1, size):
        data = parent + tokens[start : start + size]
        if media:
            data += _media_of(media, start // 8)
        parent = blake2b(data, digest_size=KEY_BYTES).digest()
        keys.append(parent)
    return keys


def _media_of(media: Sequence[Media], start: int) -> bytes:
    """What tells the media that touch the block at position `start` from others."""
    touching = [
        (item.digest, item.start - start, item.length)
        for item in media
        if item.start < start + BLOCK_TOKENS and item.start + item.length > start
    ]
    return repr(touching).encode("utf-8", "surrogatepass")
