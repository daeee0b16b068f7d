"""Reads and validates what a model folder says about itself: config.json and generation_config.json.

Sizes are bounded before transformers' config classes see them, so no number in a file causes a large allocation.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from quire.errors import BadRequest, CheckpointError
from quire.params.sampling import SamplingParams
from quire_models.loading.config_cache import cached
from quire_models.loading.config_classes import config_mapping
from quire_models.loading.json_files import read_object

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
"""Size fields of configs, and a bound far above any real model's. Some models list one size per layer."""

_MAY_BE_ZERO = frozenset({"num_experts", "num_local_experts", "num_experts_per_tok"})

_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")
_NOT_FINITE = ("Infinity", "-Infinity", "NaN")
_STRETCHED = frozenset({"linear", "dynamic", "yarn"})
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
SAMPLING_DEFAULTS = frozenset({*_SAMPLING, "max_tokens"})
"""Sampling fields for which a model may define its own default."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Contents of generation_config.json: ids that end a text, and defaults of sampling fields."""

    eos_ids: tuple[int, ...] = ()
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)


def read_config(folder: Path, trust_remote_code: bool = False, cache: Path | None = None) -> Any:
    """config.json with attribute access: transformers' class for its model_type, or else a plain namespace.

    trust_remote_code: where transformers has no class, use the folder's own config class, if it has one; a plain
    namespace if that fails. cache: folder of parsed configs (`quire_models.loading.config_cache`), which then returns a
    namespace with the attributes that the class has.
    Raises CheckpointError when the file is missing or corrupt, names no architecture, or has implausible sizes.
    """
    raw = read_object(folder, "config.json")
    if raw is None:
        raise CheckpointError(f"{folder} has no config.json, which a model folder needs.")
    architectures = raw.get("architectures")
    if not isinstance(architectures, list) or not architectures or not all(isinstance(a, str) for a in architectures):
        raise CheckpointError(f"{folder / 'config.json'} does not say which `architectures` the model has.")
    raw = decoded_floats(raw)
    check_sizes(raw, folder)
    if cache is not None and not (trust_remote_code and "auto_map" in raw):
        config: Any = cached(folder / "config.json", cache, lambda: _parse(raw, folder))
    else:
        config = (_through_code(raw, folder) if trust_remote_code else None) or _parse(raw, folder)
    check_sizes(as_mapping(config), folder)
    return config


def raw_config(folder: Path) -> Mapping[str, Any]:
    """config.json as it is; empty without the file. Raises CheckpointError when it is corrupt."""
    return decoded_floats(read_object(folder, "config.json") or {})


def decoded_floats(value: Any) -> Any:
    """Replace non-finite numbers as transformers 5 writes them, {"__float__": "Infinity"}, by their values."""
    if isinstance(value, dict):
        if value.keys() == {"__float__"} and value["__float__"] in _NOT_FINITE:
            return float(value["__float__"])
        return {key: decoded_floats(item) for key, item in value.items()}
    return [decoded_floats(item) for item in value] if isinstance(value, list) else value


def _parse(raw: Mapping[str, Any], folder: Path) -> Any:
    classes = config_mapping()
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in classes:
        return _namespace(raw)
    try:
        return classes[model_type].from_dict(dict(raw))
    except Exception as error:  # transformers raises many exception types for invalid values
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{folder / 'config.json'} cannot be used: {reason}") from error


def _through_code(raw: Mapping[str, Any], folder: Path) -> Any:
    """The config read by the folder's own config class; None if it is not needed, missing, or fails."""
    mapped = raw.get("auto_map")
    if raw.get("model_type") in config_mapping() or not isinstance(mapped, Mapping) or "AutoConfig" not in mapped:
        return None
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(str(folder), trust_remote_code=True, local_files_only=True)
    except Exception as error:  # the folder's code may raise anything
        reason = " ".join(str(error).split())[:300]
        log.warning("%s: the checkpoint's config class failed (%s); config.json is read as it is", folder, reason)
        return None


def _namespace(value: Any) -> Any:
    if isinstance(value, Mapping):
        return SimpleNamespace(**{key: _namespace(item) for key, item in value.items()})
    return value


def as_mapping(config: Any) -> dict[str, Any]:
    """The values of a parsed config by name, nested configs as mappings."""
    if isinstance(config, SimpleNamespace):
        return {key: as_mapping(v) if isinstance(v, SimpleNamespace) else v for key, v in vars(config).items()}
    values: dict[str, Any] = config.to_dict()
    return values


def check_sizes(raw: Mapping[str, Any], folder: Path) -> None:
    """Raise CheckpointError for a size that is not an integer, not positive, or implausibly large."""
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
    """Number of positions the model was made for; None if its config does not say.

    linear, dynamic and yarn scaling multiply the positions by their factor; with the other kinds the config
    already has the extended length.
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
    """Values of a config; a multimodal config has those of the language model one level down."""
    text = values.get("text_config")
    return {**values, **text} if isinstance(text, dict) else values


def checkpoint_dtype(folder: Path) -> str | None:
    """Name of the weights' data type according to the config ("float32", "bfloat16", …)."""
    raw = _text_values(read_object(folder, "config.json") or {})
    value = raw.get("dtype") or raw.get("torch_dtype")
    return value.removeprefix("torch.") if isinstance(value, str) else None


def quantization_config(folder: Path) -> Mapping[str, Any] | None:
    """The `quantization_config` of config.json, None if the weights are not quantized; `quant_method` is a string.

    A multimodal config may have it one level down, and older checkpoints call it `compression_config`.
    Raises CheckpointError if there are several that differ.
    """
    raw = read_object(folder, "config.json") or {}
    levels = [raw, *(value for name, value in raw.items() if name.endswith("_config") and isinstance(value, dict))]
    named = ("quantization_config", "compression_config")
    found = [level[name] for level in levels for name in named if isinstance(level.get(name), dict)]
    if not found:
        return None
    where = folder / "config.json"
    if any(other != found[0] for other in found[1:]):
        raise CheckpointError(f"{where} has more than one quantization config, and they differ.")
    if not isinstance(found[0].get("quant_method"), str):
        raise CheckpointError(f"{where}: `quantization_config` does not say its `quant_method`.")
    config: Mapping[str, Any] = found[0]
    return config


def read_generation(folder: Path, config: Any) -> Generation:
    """Ids that end a text (of both files, generation_config.json first) and the model's sampling defaults.

    Only defaults that are present are returned, after validation; `max_new_tokens` becomes `max_tokens`.
    Raises CheckpointError for an invalid value.
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
    """Raise CheckpointError if a request could not have these values."""
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
