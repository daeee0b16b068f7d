"""Reads fields of config.json that some families have and others lack, and maps activation names.

A config is any object with the fields as attributes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError

if TYPE_CHECKING:
    from quire_models.parts.pooling import PoolingActivation

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

_ACTIVATIONS: dict[str, PoolingActivation] = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"}
"""By the class name of torch, which sentence-transformers writes to a cross-encoder's config."""


def act(name: str) -> str:
    """Quire's name (`quire_kernels.ops.ACTS`) of the activation `name` of a config. Raises CheckpointError for an
    unknown one.
    """
    if name not in _ACTS:
        raise CheckpointError(
            f"config.json asks for the activation {name!r}; supported are {', '.join(sorted(_ACTS))}."
        )
    return _ACTS[name]


def optional(config: Any, field: str, default: Any) -> Any:
    """A field that configs of the family may lack."""
    return getattr(config, field, default)


def check_model_type(part: str, config: Any, *known: str) -> None:
    """Raise CheckpointError if the config of a part of a model has another `model_type` than the known ones.

    part: what the message calls it, such as "audio encoder".
    """
    if config.model_type not in known:
        raise CheckpointError(f"The {part} is {config.model_type!r}; what can be built is {' or '.join(known)}.")


def head_dim(config: Any) -> int:
    """Size of an attention head: `head_dim`, or hidden_size / num_attention_heads."""
    return optional(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def kv_heads(config: Any) -> int:
    """Number of key-value heads; without the field, that of the query heads."""
    return optional(config, "num_key_value_heads", None) or config.num_attention_heads


def rope_settings(config: Any) -> dict[str, Any]:
    """The settings of the rotary embedding: `rope_parameters`, or the older `rope_scaling`; empty without both."""
    return dict(optional(config, "rope_parameters", None) or optional(config, "rope_scaling", None) or {})


def window(config: Any, layer: int) -> int | None:
    """The sliding window of a layer, for configs with `layer_types`; None for full attention."""
    return config.sliding_window if config.layer_types[layer] == "sliding_attention" else None


def prediction_layers(config: Any) -> tuple[str, ...]:
    """Globs of the checkpoint's layers that follow the decoder's own and predict further tokens
    (num_nextn_predict_layers), for `WeightsMapper.ignored`.
    """
    first, count = config.num_hidden_layers, optional(config, "num_nextn_predict_layers", 0) or 0
    return tuple(f"model.layers.{layer}.*" for layer in range(first, first + count))


def num_labels(config: Any) -> int:
    """Number of classes of a classifier; 2 without the field, as in transformers."""
    given: int | None = optional(config, "num_labels", None)
    return 2 if given is None else given


def classifier_activation(config: Any) -> PoolingActivation:
    """Final activation of a classifier: from its cross-encoder settings, else by `problem_type`.

    Raises CheckpointError for an unknown function.
    """
    own = optional(config, "sentence_transformers", None) or {}
    values = own if isinstance(own, dict) else vars(own)
    chosen = values.get("activation_fn") or optional(config, "sbert_ce_default_activation_function", None)
    if chosen:
        name = str(chosen).rpartition(".")[2]
        if name not in _ACTIVATIONS:
            raise CheckpointError(
                f"config.json asks for the score activation {chosen!r:.60}; supported are {', '.join(_ACTIVATIONS)}."
            )
        return _ACTIVATIONS[name]
    kind = optional(config, "problem_type", None)
    if kind == "regression":
        return "none"
    return "sigmoid" if kind == "multi_label_classification" or num_labels(config) == 1 else "softmax"
