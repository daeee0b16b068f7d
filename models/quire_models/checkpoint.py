"""What a model folder says about itself: config.json and generation_config.json, read and distrusted.

Nothing here allocates memory in proportion to a number it has read: sizes are bounded before
transformers' config classes see them. It knows neither architectures nor tensors.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from quire.errors import BadRequest, CheckpointError
from quire.sampling import SamplingParams
from quire_models.json_files import read_object

log = logging.getLogger(__name__)

_LIMITS = {
    "vocab_size": 1 << 23,
    "hidden_size": 1 << 17,
    "n_embd": 1 << 17,
    "d_model": 1 << 17,
    "word_embed_proj_dim": 1 << 17,
    "intermediate_size": 1 << 21,
    "ffn_dim": 1 << 21,
    "n_inner": 1 << 21,
    "moe_intermediate_size": 1 << 21,
    "num_hidden_layers": 4096,
    "n_layer": 4096,
    "num_attention_heads": 8192,
    "n_head": 8192,
    "num_key_value_heads": 8192,
    "head_dim": 1 << 14,
    "num_experts": 1 << 14,
    "num_local_experts": 1 << 14,
    "num_experts_per_tok": 1 << 14,
    "max_position_embeddings": 1 << 30,
    "n_positions": 1 << 30,
}
"""Sizes that configs name, and a bound far above any model's. Some models list one per layer."""

_MAY_BE_ZERO = frozenset({"num_experts", "num_local_experts", "num_experts_per_tok"})

_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")
_NOT_FINITE = ("Infinity", "-Infinity", "NaN")
_STRETCHED = frozenset({"linear", "dynamic", "yarn"})
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
SAMPLING_DEFAULTS = frozenset({*_SAMPLING, "max_tokens"})
"""Sampling fields for which a model may bring its own default."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What generation_config.json says: ids that end a text, and defaults for sampling fields."""

    eos_ids: tuple[int, ...] = ()
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)


def read_config(folder: Path, trust_remote_code: bool = False) -> Any:
    """config.json with attribute access: transformers' class for its model_type, or else a plain namespace.

    trust_remote_code: where transformers has no class, run the one that the folder brings, if any; a namespace all the
    same if that fails.
    Raises CheckpointError when the file is missing or corrupt, names no architecture, or has absurd sizes.
    """
    raw = read_object(folder, "config.json")
    if raw is None:
        raise CheckpointError(f"{folder} has no config.json; a model folder needs one.")
    architectures = raw.get("architectures")
    if not isinstance(architectures, list) or not architectures or not all(isinstance(a, str) for a in architectures):
        raise CheckpointError(f"{folder / 'config.json'} does not say which `architectures` the model has.")
    raw = decoded_floats(raw)
    check_sizes(raw, folder)
    config = (_through_code(raw, folder) if trust_remote_code else None) or _parse(raw, folder)
    check_sizes(as_mapping(config), folder)
    return config


def raw_config(folder: Path) -> Mapping[str, Any]:
    """config.json as it is; empty when there is none. Raises CheckpointError when it is corrupt."""
    return decoded_floats(read_object(folder, "config.json") or {})


def decoded_floats(value: Any) -> Any:
    """A JSON value in which numbers that are not finite, as transformers 5 writes them, are what they stand for:
    {"__float__": "Infinity"}.
    """
    if isinstance(value, dict):
        if value.keys() == {"__float__"} and value["__float__"] in _NOT_FINITE:
            return float(value["__float__"])
        return {key: decoded_floats(item) for key, item in value.items()}
    return [decoded_floats(item) for item in value] if isinstance(value, list) else value


def _parse(raw: Mapping[str, Any], folder: Path) -> Any:
    from transformers import CONFIG_MAPPING

    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        return _namespace(raw)
    try:
        return CONFIG_MAPPING[model_type].from_dict(dict(raw))
    except Exception as error:  # transformers raises many kinds for a value it cannot use
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{folder / 'config.json'} cannot be used: {reason}") from error


def _through_code(raw: Mapping[str, Any], folder: Path) -> Any:
    """The folder's own config class at work; None where it is not needed, or not there, or it fails."""
    from transformers import CONFIG_MAPPING, AutoConfig

    mapped = raw.get("auto_map")
    if raw.get("model_type") in CONFIG_MAPPING or not isinstance(mapped, Mapping) or "AutoConfig" not in mapped:
        return None
    try:
        return AutoConfig.from_pretrained(str(folder), trust_remote_code=True, local_files_only=True)
    except Exception as error:  # code of a plugin
        reason = " ".join(str(error).split())[:300]
        log.warning("%s: the checkpoint's config class failed (%s); config.json is read as it is", folder, reason)
        return None


def _namespace(value: Any) -> Any:
    if isinstance(value, Mapping):
        return SimpleNamespace(**{key: _namespace(item) for key, item in value.items()})
    return value


def as_mapping(config: Any) -> dict[str, Any]:
    """The values of a parsed config by name, nested ones as mappings."""
    if isinstance(config, SimpleNamespace):
        return {key: as_mapping(v) if isinstance(v, SimpleNamespace) else v for key, v in vars(config).items()}
    values: dict[str, Any] = config.to_dict()
    return values


def check_sizes(raw: Mapping[str, Any], folder: Path) -> None:
    """Raise CheckpointError for a size that is no integer, not above 0, or beyond any real model's."""
    for name, limit in _LIMITS.items():
        value = raw.get(name)
        least = 0 if name in _MAY_BE_ZERO else 1
        for item in value if isinstance(value, list) else () if value is None else (value,):
            if isinstance(item, bool) or not isinstance(item, int) or not least <= item <= limit:
                raise CheckpointError(
                    f"{folder / 'config.json'}: `{name}` must be an integer from {least} to {limit}, got {item!r:.60}."
                )
    _check_heads(raw, folder)
    for value in raw.values():
        if isinstance(value, Mapping):
            check_sizes(value, folder)


def _check_heads(raw: Mapping[str, Any], folder: Path) -> None:
    heads, kv_heads, width = (raw.get(n) for n in ("num_attention_heads", "num_key_value_heads", "hidden_size"))
    if not isinstance(heads, int) or isinstance(kv_heads, list):
        return
    if kv_heads and heads % kv_heads:
        raise CheckpointError(
            f"{folder / 'config.json'}: num_attention_heads ({heads}) is not a multiple of "
            f"num_key_value_heads ({kv_heads})."
        )
    if width and raw.get("head_dim") is None and width % heads:
        raise CheckpointError(
            f"{folder / 'config.json'}: hidden_size ({width}) is not a multiple of num_attention_heads ({heads})."
        )


def max_length(config: Any) -> int | None:
    """How many positions the model was made for; None when its config does not say.

    linear, dynamic and yarn scaling stretch the positions by their factor; the other kinds already
    have the stretched length in the config.
    """
    values = _text_values(as_mapping(config))
    length = next((values[name] for name in _LENGTHS if isinstance(values.get(name), int)), None)
    scaling = values.get("rope_parameters") or values.get("rope_scaling")
    if length is None or not isinstance(scaling, Mapping):
        return length
    kind = scaling.get("rope_type") or scaling.get("type")
    factor = scaling.get("factor")
    if kind not in _STRETCHED or not isinstance(factor, int | float) or factor < 1:
        return length
    original = scaling.get("original_max_position_embeddings")
    if isinstance(original, int) and original > 0:
        return max(length, int(original * factor))
    return int(length * factor)


def _text_values(values: dict[str, Any]) -> dict[str, Any]:
    """Multimodal configs keep the language model's numbers one level down."""
    text = values.get("text_config")
    return {**values, **text} if isinstance(text, dict) else values


def checkpoint_dtype(folder: Path) -> str | None:
    """Name of the dtype the config says the weights have ("float32", "bfloat16", …)."""
    raw = _text_values(read_object(folder, "config.json") or {})
    value = raw.get("dtype") or raw.get("torch_dtype")
    return value.removeprefix("torch.") if isinstance(value, str) else None


def quantization(folder: Path) -> str | None:
    """Name of the method when the checkpoint's weights are quantized."""
    value = (read_object(folder, "config.json") or {}).get("quantization_config")
    return str(value.get("quant_method", "unnamed")) if isinstance(value, dict) else None


def read_generation(folder: Path, config: Any) -> Generation:
    """Ids that end a text (of both files, generation_config.json's first) and the model's sampling defaults.

    Only defaults that are present are returned, checked; `max_new_tokens` becomes `max_tokens`.
    Raises CheckpointError for a value that cannot be.
    """
    raw = read_object(folder, "generation_config.json") or {}
    where = folder / "generation_config.json"
    values = _text_values(as_mapping(config))
    eos = dict.fromkeys([*_ids(raw.get("eos_token_id"), where), *_ids(values.get("eos_token_id"), folder)])
    defaults = {name: raw[name] for name in _SAMPLING if raw.get(name) is not None}
    if raw.get("max_new_tokens") is not None:
        defaults["max_tokens"] = raw["max_new_tokens"]
    check_defaults(defaults, where)
    return Generation(eos_ids=tuple(eos), sampling_defaults=defaults)


def check_defaults(defaults: Mapping[str, Any], where: object) -> None:
    """Raise CheckpointError when a request could not carry these values."""
    try:
        SamplingParams(**defaults)
    except BadRequest as error:
        raise CheckpointError(f"{where}: {error.message}") from error


def _ids(value: object, where: Path) -> list[int]:
    items = value if isinstance(value, list) else [] if value is None else [value]
    ids = [i for i in items if isinstance(i, int) and not isinstance(i, bool) and i >= 0]
    if len(ids) != len(items):
        raise CheckpointError(f"{where}: `eos_token_id` must be a token id or a list of them, got {value!r:.60}.")
    return ids
