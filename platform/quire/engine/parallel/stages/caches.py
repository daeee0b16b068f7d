"""What the caches of the stages take: all have as many pages and slots, so the stage with the largest ones decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.engine.loading.load import LoadedModel
from quire_models import KVCache, StateCache
from quire_models.parts.state import KvShape, StateShape, kv_shape, state_shape
from quire_models.sharding.parts import shard_model
from quire_models.sharding.stages import cuts


class LargestCaches:
    """A decoder with the KV shapes and the state shapes of the stages that need most memory for them."""

    def __init__(
        self, decoder: Any, kv_shapes: tuple[KvShape, ...], state_shapes: tuple[StateShape | None, ...]
    ) -> None:
        self._decoder, self.kv_shapes, self.state_shapes = decoder, kv_shapes, state_shapes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)


def with_largest_caches(loaded: LoadedModel, stages: int) -> LoadedModel:
    """A stage of a model as if it had the largest caches of all."""
    if loaded.decoder.non_causal:
        return loaded
    shard: Any = loaded.module.shard
    whole, own = shard.whole.part, loaded.decoder
    blocks = whole.blocks if shard.rank.size == 1 else shard_model(whole, shard.rank).blocks
    keys, states = [], []
    for held in cuts(whole, stages):
        keys.append(tuple(kv_shape(blocks[i]) for i in held))
        states.append(tuple(state_shape(blocks[i]) for i in held))
    largest: Any = LargestCaches(
        own,
        max(keys, key=lambda shapes: KVCache.page_bytes(shapes, 1, loaded.kv_dtype)),
        max(states, key=lambda shapes: StateCache.slot_bytes(shapes, loaded.dtype)),
    )
    return replace(loaded, decoder=largest)
