"""transformers' cache with the state of layers only: keys and values are in Quire's pages."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import (
    DYNAMIC_LAYER_TYPE_MAPPING,
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)

from quire.errors import CheckpointError

ARGUMENTS = ("past_key_values", "cache_params")
"""Names of the argument of a model that takes its cache."""

_KNOWN = (
    *(DynamicLayer, DynamicSlidingWindowLayer, DummyLayer, LinearAttentionLayer),
    *(LinearAttentionAndFullAttentionLayer, LinearAttentionAndSlidingWindowAttentionLayer),
)

KNOWN_KINDS = frozenset(
    {"attention", "moe", "mlp", *(name for name, kind in DYNAMIC_LAYER_TYPE_MAPPING.items() if kind in _KNOWN)}
)
"""Types of layers that are computed, as configs name them (`layer_types`)."""


class StepCache(DynamicCache):
    """The cache that layers get: it holds the state of one row at a time, and no keys and values."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The keys and values unchanged: attention writes them to pages."""
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Always 0: positions are given."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """The keys of a mask are the tokens of the step."""
        return query_length, 0


def cache_argument(model: Any, config: Any, takes: frozenset[str]) -> str | None:
    """The argument that takes the cache if layers keep state; None if no layer does.

    Raises CheckpointError if they keep it in another form than transformers' cache.
    """
    try:
        layers = DynamicCache(config=config).layers
    except Exception:  # a config may lack what the cache needs: then its layers have no cache of this class
        layers = []
    keeps = any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers)
    name = next((each for each in ARGUMENTS if each in takes), None)
    if keeps and name is not None:
        return name
    if keeps or getattr(model, "_is_stateful", False):
        raise CheckpointError(
            "its layers keep a state for each sequence beside keys and values, and not in transformers' cache class"
        )
    return None
