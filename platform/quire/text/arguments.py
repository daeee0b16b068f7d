"""Arguments of the Python API: those that may be one thing or many in one shape, settings by their names.

Of the many it checks only how many there are; what each one is, is checked where it is used.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from quire.config import ModelConfig
from quire.errors import BadRequest, ConfigError
from quire.text.inputs import PromptInput
from quire.types import LoRARequest

UNBOUNDED = sys.maxsize
"""Requests that may wait: here the caller waits too, and a batch may be of any size."""

SETTINGS = frozenset(f.name for f in fields(ModelConfig)) - {"model"}

_ALREADY_SO: Mapping[str, tuple[Any, ...]] = {
    "tensor_parallel_size": (1,),
    "pipeline_parallel_size": (1,),
    "trust_remote_code": (False,),
    "enforce_eager": (False, True),
    "tokenizer_mode": ("auto",),
    "quantization": (None,),
    "disable_log_stats": (False, True),
}
"""Arguments of vLLM's class that ask for nothing at these values, so that its examples run as they are."""


def known_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for `ModelConfig`; TypeError names arguments that nobody knows or that ask for what is not there."""
    known: dict[str, Any] = {}
    for name, value in given.items():
        if name in SETTINGS:
            known[name] = value
        elif name not in _ALREADY_SO:
            raise TypeError(f"LLM() has no argument {name!r}; it takes {', '.join(sorted(SETTINGS))}.")
        elif value not in _ALREADY_SO[name]:
            allowed = " or ".join(repr(allowed) for allowed in _ALREADY_SO[name])
            raise ConfigError(f"`{name}` can only be {allowed} here, got {value!r}.")
    for name in ("served_model_name", "allowed_media_domains"):
        if isinstance(one := known.get(name), str):
            known[name] = (one,)
    return known


def model_config(model: str, settings: Mapping[str, Any]) -> ModelConfig:
    """The settings of a model."""
    return ModelConfig(model=model, **{"max_num_queued_reqs": UNBOUNDED, **settings})


def as_prompts(prompts: Any) -> list[PromptInput]:
    """One prompt or many as a list."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise BadRequest(
            f"`prompts` must be a prompt (text, token ids or a map) or a list of them; got {type(prompts).__name__}.",
            "prompts",
        )
    if prompts and all(isinstance(item, int) for item in prompts):
        return [prompts]
    return list(prompts)


def as_conversations(messages: Any) -> list[Any]:
    """One conversation or many as a list."""
    if isinstance(messages, Sequence) and messages and all(isinstance(item, Sequence) for item in messages):
        return list(messages)
    return [messages]


def one_each(param: str, value: Any, count: int, types: tuple[type, ...]) -> Sequence[Any]:
    """`value` for each of `count` prompts: one for all, or a list of as many."""
    if isinstance(value, types):
        return [value] * count
    return _checked_each(param, value, count, types)


def _checked_each(param: str, value: Any, count: int, types: tuple[type, ...]) -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(v, types) for v in value):
        names = " or ".join(kind.__name__ for kind in types)
        raise BadRequest(f"`{param}` must be {names}, or a list of them.", param)
    if len(value) != count:
        raise BadRequest(f"`{param}` has {len(value)} entries for {count} prompts.", param)
    return value


def as_adapters(lora_request: Any, count: int) -> Sequence[Sequence[LoRARequest]]:
    """The adapters of each of `count` prompts, () = the base model. One name must mean one path."""
    one_for_all = lora_request is None or isinstance(lora_request, LoRARequest)
    given = [lora_request] * count if one_for_all else lora_request
    each = []
    for one in _checked_each("lora_request", given, count, (LoRARequest, type(None), list, tuple)):
        uses = (one,) if isinstance(one, LoRARequest) else tuple(one or ())
        if not all(isinstance(use, LoRARequest) for use in uses):
            raise BadRequest("`lora_request` must be LoRARequest, or a list of them for each prompt.", "lora_request")
        each.append(uses)
    paths: dict[str, str] = {}
    for use in (use for uses in each for use in uses):
        if paths.setdefault(use.lora_name, use.lora_path) != use.lora_path:
            raise BadRequest(f"`lora_request` has two paths for the name {use.lora_name!r}.", "lora_request")
    return each
