"""What changes in the prefix cache of an engine, for routers outside: the events of vLLM.

A block is a full page of the KV cache. Hashes are 64 bits of a page's hash, which covers all tokens, media, adapters
and the cache salt from the first position on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

DEVICE = "GPU"
"""The medium of pages on the device of the model, whatever the device is; vLLM's name, which routers know."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockStored:
    """Blocks that follow each other are in the cache.

    parent_block_hash: of the block before the first one, None = there is none. token_ids: of all blocks. lora_name:
    names of the adapters, joined by +, with their weights if these are not 1. lora_id: a number for these names.
    extra_keys: for each block what tells it from others besides tokens and parent: (digest, offset) of its media, the
    adapters, and in the first block the cache salt; None = nothing.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = DEVICE
    lora_name: str | None
    extra_keys: list[list[Any] | None] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockRemoved:
    """Blocks are not in the cache any more."""

    block_hashes: list[int]
    medium: str | None = DEVICE


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """Nothing is in the cache that was stored before."""


KvEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared
