"""The methods of `LLM` that free memory and take it again: sleep, wake up, load, unload, close."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from quire.errors import BadRequest, NotFound
from quire.llm.parts import LLMParts
from quire.llm.requests import OfflineRequests
from quire.media.loader import MediaLoader
from quire.settings.model_values import OF_ONE_MODEL
from quire.text.chat.template_pool import TemplatePool

if TYPE_CHECKING:
    from quire.llm.llm import LLM

WEIGHTS, KV_CACHE = TAGS = ("weights", "kv_cache")


class LLMLifecycle:
    """Base class of `LLM`. models: those that `load` has loaded, by name. arguments: those of this `LLM`."""

    requests: OfflineRequests
    _parts: LLMParts
    _engine: Any
    _template_pool: TemplatePool
    _media_loader: MediaLoader

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.models: dict[str, LLM] = {}
        self._arguments = arguments
        self._asleep: frozenset[str] = frozenset()
        self._closed = self._engine_closed = False

    # --- sleep -------------------------------------------------------------------------------------

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Free the KV cache, at level 2 the weights too. Requests raise `ModelAsleep` until `wake_up`.

        Level 1 keeps the weights on a CPU; on a GPU, and with several ranks, both levels free both, and the weights are
        read from their files again. mode: abort drops requests that have not ended; wait computes them first.
        """
        if level not in (1, 2):
            raise BadRequest(f"`level` must be 1 or 2; got {level}.", "level")
        if mode not in ("abort", "wait"):
            raise BadRequest(f"`mode` must be abort or wait; got {mode}.", "mode")
        if self._parts.rebuild is None:
            raise BadRequest("This LLM was made of a loaded engine, which cannot be loaded again.")
        if level == 1 and self._asleep == frozenset(TAGS):
            return
        if not self._asleep:
            self.requests.runner.complete() if mode == "wait" else self.requests.runner.abort(self.requests.runner.ids)
        self._asleep, self.requests.is_asleep = frozenset(TAGS), True
        if not self._engine_closed and not (level == 1 and self._parts.has_one_rank and self._engine.free_caches()):
            self._engine_closed = True
            self._parts.close()

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Restore the model, or parts of it: `weights`, `kv_cache`. It takes requests when both are awake.

        Adapters are read again when requests name them. Raises what loading raises, and then it sleeps on.
        """
        if wrong := [tag for tag in tags or () if tag not in TAGS]:
            raise BadRequest(f"`tags` may be weights and kv_cache; got {wrong[0]}.", "tags")
        left = self._asleep - frozenset(tags or TAGS)
        if self._engine_closed and not left:
            self._reopen()
        elif self._engine_closed and WEIGHTS not in left and self._parts.on_cpu and self._parts.has_one_rank:
            self._reopen()
            self._engine.free_caches()
        self._asleep, self.requests.is_asleep = left, bool(left)

    @property
    def is_sleeping(self) -> bool:
        """Whether the model, or a part of it, sleeps."""
        return bool(self._asleep)

    def _reopen(self) -> None:
        assert self._parts.rebuild is not None, "checked when it fell asleep"
        self._engine = self._parts.rebuild()
        self._parts = replace(self._parts, engine=self._engine)
        self.requests.use_engine(self._engine)
        self._engine_closed = False

    # --- further models ----------------------------------------------------------------------------

    def load(self, name: str, model: str, **settings: Any) -> LLM:
        """Load one more model into this process and return it; `models` has it by this name.

        settings: as of `LLM`; what this one was opened with applies too, except what names its files. The models share
        the memory that is free. Raises `BadRequest` for a name that is in use, and what `LLM` raises.
        """
        from quire.llm.llm import LLM

        if not name or name in self.models:
            raise BadRequest(f"The name {name!r} is in use by a model." if name else "A model needs a name.", "name")
        own = {key: value for key, value in self._arguments.items() if key not in OF_ONE_MODEL}
        self.models[name] = loaded = LLM(model, **{**own, **settings})
        return loaded

    def unload(self, name: str) -> None:
        """Close a model of `load` and free its memory. Raises `NotFound`."""
        loaded = self.models.pop(name, None)
        if loaded is None:
            known = ", ".join(self.models) or "none"
            raise NotFound(f"The model `{name}` is not loaded. Models loaded: {known}.", "name")
        loaded.close()

    # --- shutdown ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Free the device and end the worker processes. Later calls fail, except that `close` may be called again."""
        for name in list(self.models):
            self.unload(name)
        if self._closed:
            return
        self._closed = True
        self._template_pool.close()
        self._media_loader.close()
        if not self._engine_closed:
            self._parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()
