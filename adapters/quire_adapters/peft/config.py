"""Reads and checks adapter_config.json: the variant of LoRA, the ranks, and the modules that were trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire import files
from quire.errors import BadRequest

FILE = "adapter_config.json"
MAX_BYTES = 1 << 20
MAX_ALPHA = 1e6
MAX_RANK = MAX_LAYER = 1 << 31

UNSUPPORTED = {
    "layer_replication": "it repeats layers of the model",
    "trainable_token_indices": "it trains single rows of the embeddings",
    "alora_invocation_tokens": "it applies only after certain tokens (aLoRA)",
    "use_qalora": "it pools the inputs of matrices (QALoRA)",
    "arrow_config": "it chooses among other adapters (Arrow)",
    "use_bdlora": "its matrices are block-diagonal (BD-LoRA)",
    "kasa_config": "it changes the base weights (KaSA)",
    "monteclora_config": "it samples its weights (MonteCLoRA)",
    "velora_config": "it has its own gradient (VeLoRA)",
    "megatron_config": "its layers are Megatron's",
}
"""Settings of variants that are not supported, and what each would do."""


@dataclass(frozen=True)
class Rule:
    """A check of a setting: a predicate, and its description for errors."""

    is_valid: Callable[[Any], bool]
    description: str


def _is_rank(value: Any) -> bool:
    return type(value) is int and 0 < value < MAX_RANK


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= MAX_ALPHA


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _or_none(rule: Rule) -> Rule:
    return Rule(lambda value: value is None or rule.is_valid(value), f"{rule.description}, or null")


def _table(is_valid: Callable[[Any], bool], values: str) -> Rule:
    return _or_none(Rule(lambda v: isinstance(v, dict) and all(map(is_valid, v.values())), f"an object of {values}"))


RANK = Rule(_is_rank, "a whole number of at least 1")
NUMBER = Rule(_is_number, f"a number from -{MAX_ALPHA:.0f} to {MAX_ALPHA:.0f}")
FLAG = Rule(_is_flag, "true or false")
NAMES = _or_none(Rule(_is_names, "a list of strings"))
PATTERN = _or_none(Rule(lambda value: isinstance(value, str) or _is_names(value), "a string or a list of strings"))
LAYERS = Rule(
    lambda value: all(
        type(layer) is int and abs(layer) < MAX_LAYER for layer in (value if isinstance(value, list) else [value])
    ),
    "a whole number or a list of them",
)
RULES = {
    "r": RANK,
    "lora_alpha": NUMBER,
    "use_rslora": FLAG,
    "use_dora": FLAG,
    "lora_bias": FLAG,
    "bias": Rule(lambda value: value in ("none", "all", "lora_only"), "one of none, all, lora_only"),
    "rank_pattern": _table(_is_rank, "whole numbers of at least 1"),
    "alpha_pattern": _table(_is_number, "numbers"),
    "target_modules": PATTERN,
    "exclude_modules": PATTERN,
    "target_parameters": NAMES,
    "layers_to_transform": _or_none(LAYERS),
    "layers_pattern": PATTERN,
    "ensure_weight_tying": FLAG,
}
"""The check of each field of `PeftConfig`."""


@dataclass(frozen=True, kw_only=True)
class PeftConfig:
    """The settings that inference needs, by PEFT's names. Settings of training are ignored."""

    r: int = 8
    lora_alpha: float = 8
    use_rslora: bool = False
    use_dora: bool = False
    lora_bias: bool = False
    bias: str = "none"
    rank_pattern: Mapping[str, int] | None = None
    alpha_pattern: Mapping[str, float] | None = None
    target_modules: str | list[str] | None = None
    exclude_modules: str | list[str] | None = None
    target_parameters: list[str] | None = None
    layers_to_transform: int | list[int] | None = None
    layers_pattern: str | list[str] | None = None
    ensure_weight_tying: bool = False

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that were trained; empty: all."""
        given = self.layers_to_transform
        return (given,) if isinstance(given, int) else tuple(given or ())


def read(folder: Path) -> dict[str, Any]:
    """The fields of `PeftConfig` that an adapter's folder sets, checked.

    Raises BadRequest if the file is malformed or the variant is not supported.
    """
    try:
        given = files.read_json(folder / FILE, MAX_BYTES)
    except files.FileRefused as error:
        raise BadRequest(f"{FILE} cannot be used: {error}.", "lora_path") from error
    if not isinstance(given, dict):
        raise BadRequest(f"{FILE} must be a JSON object.", "lora_path")
    for name, reason in UNSUPPORTED.items():
        if given.get(name) not in (None, False, {}, []):
            raise BadRequest(f"{FILE} sets `{name}`, which is not supported: {reason}.", "lora_path")
    for name, rule in RULES.items():
        if name in given and not rule.is_valid(given[name]):
            raise BadRequest(f"{FILE}: `{name}` must be {rule.description}, not {given[name]!r:.60}.", "lora_path")
    return {name: value for name, value in given.items() if name in RULES}
