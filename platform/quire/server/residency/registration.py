"""What the server keeps of a model that requests may name, whether it is loaded or not."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Literal

from quire.errors import ModelNotLoaded, QuireError
from quire.server.residency.policy import Resident
from quire.server.residency.size_estimate import SizeEstimate
from quire.settings.model_config import ModelConfig
from quire.settings.model_groups.residency_config import ON_DEMAND
from quire.types import ModelInfo
from quire.types.adapter_info import AdapterInfo
from quire.types.model_info import bytes_in_words

MAX_PAUSE_S = 60.0
"""The longest pause after a load that has failed; the first takes a second, and each is twice as long as the last."""


@dataclass(eq=False, kw_only=True)
class Registration:
    """A model by its settings. For one event loop.

    size: estimated. needs: bytes that the last load has taken, or at least needs; 0 = not known. info: of the last
    load. num_users: requests that use it. waiters: of requests that wait for it. since: when the first of these came.
    adapters: of a model that is not loaded, to be restored with it. failures: loads in a row that have failed, with the
    last error; none is tried before `retry_at`.
    """

    config: ModelConfig
    size: SizeEstimate = field(default_factory=SizeEstimate)
    state: Literal["unloaded", "loading", "ready", "unloading"] = "unloaded"
    needs: int = 0
    info: ModelInfo | None = None
    num_users: int = 0
    last_used: float = 0.0
    waiters: list[asyncio.Future[None]] = field(default_factory=list)
    since: float = 0.0
    adapters: tuple[AdapterInfo, ...] = ()
    failures: int = 0
    error: QuireError | None = None
    retry_at: float = -math.inf

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def names(self) -> tuple[str, ...]:
        """The name, and the aliases of the settings."""
        return tuple(dict.fromkeys((self.name, *self.config.served_model_name)))

    @property
    def is_on_demand(self) -> bool:
        return self.config.load == ON_DEMAND

    @property
    def state_of_unloaded(self) -> Literal["unloaded", "loading", "failed"]:
        """The state for clients while the model is not loaded."""
        return "loading" if self.state == "loading" else "unloaded" if self.error is None else "failed"

    def num_bytes(self, limit: float, num_models: int) -> int:
        """What the model takes, or will take, of `limit` bytes for `num_models` models, without adapters."""
        if self.needs:
            return self.needs
        swap = int(self.config.swap_space * 2**30)
        return self.size.weights + self.size.kv_cache(self.config, limit, num_models) + swap

    @property
    def num_bytes_asleep(self) -> int:
        """What the model takes while it sleeps with its weights: all but its KV cache and swap space."""
        if self.info is None:
            return self.size.weights
        swap = int(self.config.swap_space * 2**30)
        return max(0, self.info.memory_bytes - self.info.kv_cache_bytes - swap)

    def resident(self, num_bytes: int, *, moves: bool, is_busy: bool) -> Resident:
        """The model as the policy sees it. moves: models that were loaded at the start may be unloaded for others."""
        return Resident(
            name=self.name,
            num_bytes=num_bytes,
            last_used=self.last_used,
            keep_alive_s=self.config.keep_alive_s,
            is_fixed=self.config.pinned or not (moves or self.is_on_demand),
            is_busy=is_busy or self.num_users > 0 or self.state != "ready",
        )

    def failed(self, error: QuireError, now: float) -> None:
        """Remember why a load has failed, and do not try again for a while."""
        self.failures += 1
        self.error, self.state, self.needs = error, "unloaded", 0
        self.retry_at = now + min(MAX_PAUSE_S, 2.0 ** (self.failures - 1))

    def loaded(self, info: ModelInfo, now: float) -> None:
        """Note a load that has succeeded."""
        self.state, self.info, self.needs = "ready", info, info.memory_bytes or self.needs
        self.failures, self.error, self.retry_at, self.last_used = 0, None, -math.inf, now

    def failure(self, now: float) -> ModelNotLoaded | None:
        """The error for requests while no load is tried; None if one may be."""
        if self.error is None or now >= self.retry_at:
            return None
        wait = max(1, math.ceil(self.retry_at - now))
        failure = ModelNotLoaded(
            f"The model `{self.name}` could not be loaded: {self.error.message} It is tried again in {wait} s.", "model"
        )
        failure.retry_after_s = wait
        return failure

    def size_in_words(self, limit: float, num_models: int) -> str:
        """What the model needs, for an error message."""
        cache = self.size.kv_cache(self.config, limit, num_models)
        words = f"weights {bytes_in_words(self.size.weights)}, KV cache {bytes_in_words(cache)}"
        return f"{bytes_in_words(self.num_bytes(limit, num_models))} ({words})"
