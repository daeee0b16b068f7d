"""What adapter_config.json says, checked: which variant of LoRA it is, its ranks, and what it was trained on."""

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

REFUSED = {
    "layer_replication": "it repeats layers of the model",
    "trainable_token_indices": "it trains rows of the embeddings on their own",
    "alora_invocation_tokens": "it is at work from certain tokens on only (aLoRA)",
    "use_qalora": "it pools what matrices read (QALoRA)",
    "arrow_config": "it chooses among other adapters (Arrow)",
    "use_bdlora": "its matrices are block-diagonal (BD-LoRA)",
    "kasa_config": "it changes the base weights (KaSA)",
    "monteclora_config": "it samples its weights (MonteCLoRA)",
    "velora_config": "it has a gradient of its own (VeLoRA)",
    "megatron_config": "its layers are those of Megatron",
}
"""Settings of variants that cannot be run, and what each would do."""


@dataclass(frozen=True)
class Rule:
    """What a value may be: a test, and the words for it."""

    holds: Callable[[Any], bool]
    words: str


def _is_rank(value: Any) -> bool:
    return type(value) is int and 0 < value < MAX_RANK


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= MAX_ALPHA


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _or_none(rule: Rule) -> Rule:
    return Rule(lambda value: value is None or rule.holds(value), f"{rule.words}, or null")


def _table(values: Callable[[Any], bool], words: str) -> Rule:
    return _or_none(Rule(lambda v: isinstance(v, dict) and all(map(values, v.values())), f"an object of {words}"))


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
"""What each field of `Config` may be."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings that matter for running, by PEFT's names. What only matters for training is not looked at."""

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
        """The layers it was trained on; empty = all."""
        given = self.layers_to_transform
        return (given,) if isinstance(given, int) else tuple(given or ())


def read(folder: Path) -> dict[str, Any]:
    """The fields of `Config` that an adapter's folder gives, checked.

    Raises BadRequest for a file that is not well-formed, or of a refused variant.
    """
    try:
        given = files.read_json(folder / FILE, MAX_BYTES)
    except files.FileRefused as error:
        raise BadRequest(f"{FILE} cannot be used: {error}.", "lora_path") from error
    if not isinstance(given, dict):
        raise BadRequest(f"{FILE} must be a JSON object.", "lora_path")
    for name, reason in REFUSED.items():
        if given.get(name) not in (None, False, {}, []):
            raise BadRequest(f"{FILE} sets `{name}`, which cannot be run here: {reason}.", "lora_path")
    for name, rule in RULES.items():
        if name in given and not rule.holds(given[name]):
            raise BadRequest(f"{FILE}: `{name}` must be {rule.words}, not {given[name]!r:.60}.", "lora_path")
    return {name: value for name, value in given.items() if name in RULES}
