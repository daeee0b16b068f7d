"""Page keys: equal keys mean equal K and V, so everything that changes K or V goes into them.

key of page i = H(key of page i-1, token ids, digests and offsets of the media touching the page);
the key before page 0 stands for the adapters, their revisions and weights, and the cache salt. It knows no pool
and no seq.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from quire.types import AdapterUse, Media

KEY_BYTES = 16


def root_key(adapters: Sequence[AdapterUse], salt: str | None) -> bytes:
    """What stands before the first page. No salt and an empty one differ; no two fields can run together."""
    uses = [f"{use.ref.revision}:{use.weight!r}:{use.ref.name}" for use in adapters]
    fields = [text.encode("utf-8", "surrogatepass") for text in (*uses, *(() if salt is None else (salt,)))]
    lengths = array("q", [len(uses), len(fields), *map(len, fields)]).tobytes()
    return blake2b(lengths + b"".join(fields), digest_size=KEY_BYTES).digest()


def page_key(parent: bytes, token_ids: Sequence[int], start: int, media: Sequence[Media] = ()) -> bytes:
    """Key of the full page that holds `token_ids`, the first of them at position `start`."""
    hasher = blake2b(parent, digest_size=KEY_BYTES)
    hasher.update(array("q", token_ids).tobytes())
    end = start + len(token_ids)
    for item in media:
        if item.start < end and item.start + item.length > start:
            digest = item.digest.encode("utf-8", "surrogatepass")
            hasher.update(array("q", [len(digest), item.start - start, item.length]).tobytes() + digest)
    return hasher.digest()
