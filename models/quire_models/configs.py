"""Reading of config.json: fields that some families have and others leave out, and words that mean our acts.

A config is any object with the fields as attributes. This is the one place that knows what absence means.
"""

from __future__ import annotations

from typing import Any

from quire.errors import CheckpointError

_ACTS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "quick_gelu": "quick_gelu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "linear": "identity",
}


def act(name: str) -> str:
    """Our name of the activation that a config calls `name`; raises CheckpointError for one there is not."""
    if name not in _ACTS:
        raise CheckpointError(f"config.json asks for the activation {name!r}; known are {', '.join(sorted(_ACTS))}.")
    return _ACTS[name]


def optional(config: Any, field: str, default: Any) -> Any:
    """A field that configs of this family may lack."""
    return getattr(config, field, default)


def head_dim(config: Any) -> int:
    """Size of an attention head; the width shared out over the heads unless the config says otherwise."""
    return optional(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def kv_heads(config: Any) -> int:
    """Number of key-value heads; as many as query heads unless the config says otherwise."""
    return optional(config, "num_key_value_heads", None) or config.num_attention_heads


def window(config: Any, layer: int) -> int | None:
    """The sliding window of a layer, for configs that list a type for each layer."""
    return config.sliding_window if config.layer_types[layer] == "sliding_attention" else None
