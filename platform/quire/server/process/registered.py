"""The models of the settings that the server may load: which at its start, and whether each can fit."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence

from quire.engine_process.wire.memory_plan import MemoryPlan
from quire.errors import ConfigError
from quire.records import Registry
from quire.server.process.startup_adapters import parse_lora_modules
from quire.server.residency.registration import Registration
from quire.server.residency.size_estimate import estimate
from quire.settings.model_config import ModelConfig
from quire.settings.residency_config import ON_DEMAND
from quire.settings.server_config import ServerConfig
from quire.types import ModelInfo
from quire.types.model_info import bytes_in_words

log = logging.getLogger("quire.server")

SERVER_BYTES = 192 << 20
"""What the API process takes of --memory-budget: Python, the server's libraries, tokenizers and requests."""


def at_start(models: Sequence[ModelConfig]) -> list[ModelConfig]:
    """The models that the server loads before it accepts requests."""
    return [model for model in models if model.load != ON_DEMAND]


def memory_plan(models: Sequence[ModelConfig], config: ServerConfig) -> MemoryPlan:
    """What the models may take, if there is a budget or some are loaded on demand."""
    budget = config.memory_budget
    if budget is None and len(at_start(models)) == len(models):
        return MemoryPlan()
    return MemoryPlan(None if budget is None else max(0, budget - SERVER_BYTES), max(1, len(models)))


def check_sizes(models: Sequence[ModelConfig], config: ServerConfig) -> None:
    """Raise ConfigError for a model that cannot be loaded on demand, or that is larger than the budget."""
    for model in models:
        if model.load == ON_DEMAND and model.nnodes > 1:
            raise ConfigError(f"{model.name}: a model on several machines (--nnodes) cannot be loaded on demand.")
        if model.load == ON_DEMAND or config.memory_budget is not None:
            _check_size(_registration(model), config.memory_budget or math.inf, len(models), config)


def check_limit(found: Iterable[Registration], limit: int, config: ServerConfig) -> None:
    """Raise ConfigError if a model, or all that are pinned, need more than the `limit` bytes, 0 = not known."""
    found = list(found)
    if config.memory_budget is not None and found and not limit:
        raise ConfigError(
            f"--memory-budget {bytes_in_words(config.memory_budget)} is smaller than what the server's processes take "
            "without a model."
        )
    if not limit:
        return
    for one in found:
        _check_size(one, limit, len(found), config)
    pinned = [one for one in found if one.config.pinned]
    together = sum(one.num_bytes(limit, len(found)) for one in pinned)
    if together > limit:
        raise ConfigError(
            f"The models {', '.join(one.name for one in pinned)} are pinned and need {bytes_in_words(together)} "
            f"together, but models may take {bytes_in_words(limit)}."
        )
    if on_demand := [one.name for one in found if one.is_on_demand]:
        log.info("models that are loaded on demand, in %s of memory: %s", bytes_in_words(limit), ", ".join(on_demand))


def registrations(
    models: Sequence[ModelConfig], loaded: Sequence[ModelInfo], config: ServerConfig, registry: Registry
) -> list[Registration]:
    """All models of the settings, those that are `loaded` as such, the others with their adapters; reads files."""
    infos = {info.name: info for info in loaded}
    on_demand = [model for model in models if model.load == ON_DEMAND]
    adapters = parse_lora_modules(models, config, registry, on_demand) if on_demand else []
    found = [_registration(model) for model in models]
    for one in found:
        if one.name in infos:
            one.loaded(infos[one.name], -math.inf)
        one.adapters = tuple(info for info in adapters if info.model == one.name)
    return found


def _registration(model: ModelConfig) -> Registration:
    return Registration(config=model, size=estimate(model))


def _check_size(one: Registration, limit: float, num_models: int, config: ServerConfig) -> None:
    if one.num_bytes(limit, num_models) <= limit:
        return
    budget = config.memory_budget
    of_processes = f" (--memory-budget {bytes_in_words(budget)}, less the server's processes)" if budget else ""
    raise ConfigError(
        f"The memory is smaller than one model: {one.name} needs {one.size_in_words(limit, num_models)}, but models "
        f"may take {bytes_in_words(int(limit))}{of_processes}. Raise --memory-budget, lower --kv-cache-memory-bytes or "
        "--max-model-len, or leave the model out."
    )
