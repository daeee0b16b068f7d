"""Normalizes arguments of the Python API: one value or a list becomes one per prompt, settings are matched by name.

Of lists it checks types and lengths; the values are validated where they are used.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from quire.errors import BadRequest
from quire.from_vllm.arguments import without_vllm_arguments
from quire.settings.model_config import ModelConfig
from quire.settings.model_groups.residency_config import RESIDENCY_SETTINGS
from quire.settings.near_names import near_name
from quire.settings.server_config import ServerConfig
from quire.text.inputs.inputs import PromptInput
from quire.types import LoRARequest

UNBOUNDED = sys.maxsize
"""Limit of waiting requests: the caller waits for the whole batch, so its size is not limited."""

SETTINGS = frozenset(f.name for f in fields(ModelConfig)) - {"model", *RESIDENCY_SETTINGS}

_OF_THE_SERVER = frozenset((*(f.name for f in fields(ServerConfig)), *RESIDENCY_SETTINGS))
_NOTHING_TO_SET = frozenset({"disable_log_stats"})
"""Settings of the server that vLLM scripts pass to `LLM`, where either value has no effect."""

_ONE_ENGINE = ("data_parallel_size", 1)
"""What the class always does: it has one engine, in its own process."""


def known_settings(given: Mapping[str, Any], call: str = "LLM") -> dict[str, Any]:
    """The settings for `ModelConfig`, without vLLM arguments that have no effect here, as None for one of a server.

    call: name of the called function in error messages. Raises TypeError for an unknown argument, ConfigError for a
    vLLM argument that asks for a feature that does not exist here.
    """
    known = {
        name: value
        for name, value in without_vllm_arguments(given).items()
        if name not in _NOTHING_TO_SET
        and not (value is None and name in _OF_THE_SERVER)
        and (name, value) != _ONE_ENGINE
    }
    for name in known.keys() - SETTINGS:
        raise TypeError(f"{call}() has no argument {name!r}{_instead(name)}")
    for name in ("served_model_name", "allowed_media_domains"):
        if isinstance(one := known.get(name), str):
            known[name] = (one,)
    return known


def _instead(name: str) -> str:
    """The end of the sentence about an unknown argument."""
    if name in _OF_THE_SERVER:
        return f": it is a setting of the server (platform serve --{name.replace('_', '-')})."
    near = near_name(name, {*SETTINGS, "plugins", "plugin_options", "enable_lora"})
    if near is not None:
        return f". Did you mean {near!r}?"
    return f"; it takes {', '.join(sorted(SETTINGS))}."


def model_config(model: str, settings: Mapping[str, Any]) -> ModelConfig:
    """With the defaults of a process that serves no streams: more sequences in a step delay nothing."""
    return ModelConfig(model=model, **{"max_num_queued_reqs": UNBOUNDED, "max_num_seqs": 256, **settings})


def as_prompts(prompts: Any) -> list[PromptInput]:
    """A list of prompts from one prompt or many."""
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
    """A list of conversations from one conversation or many."""
    if isinstance(messages, Sequence) and messages and all(isinstance(item, Sequence) for item in messages):
        return list(messages)
    return [messages]


def broadcast(param: str, value: Any, count: int, types: tuple[type, ...]) -> Sequence[Any]:
    """`value` for each of `count` prompts. It is one value for all of them, or a list of `count` values."""
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
    """The adapters of each of `count` prompts, () = the base model. Raises BadRequest for a name with two paths."""
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
