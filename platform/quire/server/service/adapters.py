"""The adapters that requests may name: loaded by a client through the API, or found by resolver plugins.

The engine process loads their weights. This module resolves names to models and adapters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from quire.errors import BadRequest, NotFound, Overloaded
from quire.hooks.adapter_resolver import AdapterResolver, base_of, check_name
from quire.server.changes.aliases import ModelAlias
from quire.server.schemas.adapters import AdapterChoice, LoadAdapterRequest
from quire.server.service.client_protocol import AdapterClientProtocol
from quire.server.service.models import ModelDirectory, ServedModel
from quire.settings.server_config import ServerConfig
from quire.types import AdapterRef, WeightedAdapter
from quire.types.adapter_info import AdapterInfo

MAX_SEARCHES = 64
"""Names that are looked up in plugins at the same time."""

MAX_LISTED = 20
"""Adapters that an error message lists."""

MAX_MODEL_NAME = 4096
"""Characters of `model` and of `lora_path`, which may be paths."""


class InvalidUserInput(BadRequest):
    """A request to load or unload an adapter is not valid; the name is vLLM's."""

    type = "InvalidUserInput"


class AdapterService:
    """Finds, loads and unloads adapters by name.

    table: the adapters of the engine process. sources: finds the folder of an adapter. enabled: whether any adapter
    runtime is loaded.
    """

    def __init__(
        self, models: ModelDirectory, table: AdapterClientProtocol, sources: AdapterResolver, enabled: bool
    ) -> None:
        self._models, self._table, self._sources, self._enabled = models, table, sources, enabled
        self._searches: dict[str, asyncio.Task[AdapterInfo | None]] = {}

    def ready(self) -> list[AdapterInfo]:
        """The adapters that requests may use now."""
        served = {model.info.name for model in self._models.all}
        return [info for info in self._table.all() if info.state == "ready" and info.model in served]

    async def fetch(self) -> list[AdapterInfo]:
        """All adapters, with their current state in the engine process."""
        infos = await self._table.fetch()
        known = {served.info.name for served in (*self._models.all, *self._models.leaving)}
        return [info for info in infos if info.model in known]

    def has(self, name: str) -> bool:
        """Whether an adapter of this name is loaded or being loaded."""
        return self._table.get(name) is not None

    # --- resolving names ---------------------------------------------------------------------------

    async def find(
        self, name: str | None, choices: Sequence[AdapterChoice] | None = None, alias: ModelAlias | None = None
    ) -> ServedModel:
        """The model or adapter called `name`, which takes requests. choices: adapters to use with the model called
        `name`. alias: what has led to this name.

        Resolver plugins look for an unknown name, which may take long. Raises `NotFound`, `BadRequest`, `ModelAsleep`
        and `ModelUnloaded`.
        """
        if name is not None and len(name) > MAX_MODEL_NAME:
            raise self.not_found(name)
        try:
            served = await self._find(name, choices)
        except NotFound as error:
            if alias is None:
                raise
            raise NotFound(f"The alias `{alias.name}` leads to: {error.message}", "model") from error
        self._models.check_awake(served)
        return served if alias is None else served.with_alias(alias.name)

    async def _find(self, name: str | None, choices: Sequence[AdapterChoice] | None) -> ServedModel:
        self._models.check_stays(name)
        if not name and choices:
            name = (await self._resolve(choices[0].name)).model
        served = self._models.get(name) if name or self._models.all else self._models.find(name)
        if served is None:
            info = await self._resolve(name or "")
            if choices:
                raise BadRequest(
                    f"`model` names an adapter; with `adapters` it must name the model itself, `{info.model}`.", "model"
                )
            return self.base_model(info).with_adapters(info.name, (_weighted(info.name),))
        if not choices:
            return served
        for choice in choices:
            info = await self._resolve(choice.name)
            if info.model != served.info.name:
                raise BadRequest(f"The adapter `{info.name}` belongs to `{info.model}`, not to `{name}`.", "adapters")
        return served.with_adapters(served.name, tuple(_weighted(choice.name, choice.weight) for choice in choices))

    def not_found(self, name: str) -> NotFound:
        """The error for an unknown name; its message lists the known names."""
        names = [info.name for info in self.ready()]
        more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
        listed = f" Adapters: {', '.join(names[:MAX_LISTED])}{more}." if names else ""
        return NotFound(f"{self._models.not_found(name).message}{listed}", "model")

    async def _resolve(self, name: str) -> AdapterInfo:
        """The adapter of this name. One that is loaded for the first time is waited for: only then it is known how many
        virtual tokens it puts before the prompt.
        """
        info = self._table.get(name)
        if info is None or name in self._searches:
            info = await self._search(name)
            if info is None:
                raise self.not_found(name)
        elif info.state == "loading":
            info = await self._table.settled(name)
            if info is None:  # it was unloaded meanwhile
                raise self.not_found(name)
        if info.state == "failed":
            raise BadRequest(f"The adapter `{info.name}` could not be loaded: {info.error}", "model")
        return info

    async def _search(self, name: str) -> AdapterInfo | None:
        """Ask plugins for an adapter; requests for the same name share one search."""
        if not self._enabled:
            return None
        try:
            check_name(name, with_owner=True)
        except BadRequest:
            return None
        if name not in self._searches:
            if len(self._searches) >= MAX_SEARCHES:
                raise Overloaded(f"Plugins are being asked for {MAX_SEARCHES} other adapters; try again later.")
            search = self._searches[name] = asyncio.ensure_future(self._find_and_load(name))
            search.add_done_callback(lambda _: self._searches.pop(name, None))
        return await asyncio.shield(self._searches[name])

    async def _find_and_load(self, name: str) -> AdapterInfo | None:
        for served in self._models.all:
            folder = await asyncio.to_thread(self._sources.find, name, served.info.root)
            if folder is None:
                continue
            base = await asyncio.to_thread(base_of, folder, self._models.known_names()) or served.info.name
            try:
                return await self._table.load(AdapterInfo(name=name, model=base, path=str(folder)))
            except BadRequest as error:
                known = self._table.get(name)
                if known is not None and known.state == "ready":  # a client loaded it meanwhile
                    return known
                raise BadRequest(
                    f"LoRA adapter '{name}' was found but could not be loaded: {error.message}", "model"
                ) from error
        return None

    def base_model(self, info: AdapterInfo) -> ServedModel:
        """The model that an adapter belongs to; raises `NotFound` if it was unloaded."""
        for served in (*self._models.all, *self._models.leaving):
            if served.info.name == info.model:
                return served
        raise self._models.not_found(info.model)

    # --- loading and unloading ---------------------------------------------------------------------

    async def load(self, request: LoadAdapterRequest) -> AdapterInfo:
        """Load an adapter. Raises `InvalidUserInput` and `NotFound`, and then has no effect."""
        name = request.lora_name
        if not name or not request.lora_path:
            raise InvalidUserInput("Both 'lora_name' and 'lora_path' must be provided.", "lora_name")
        if len(request.lora_path) > MAX_MODEL_NAME:
            raise InvalidUserInput(f"'lora_path' may have at most {MAX_MODEL_NAME} characters.", "lora_path")
        if request.is_3d_lora_weight:
            raise InvalidUserInput("`is_3d_lora_weight` is not supported by this server.", "is_3d_lora_weight")
        if self._models.get(name) is not None or self._models.aliases.get(name) is not None:
            raise InvalidUserInput(f"The lora adapter '{name:.200}' conflicts with a served base model.", "lora_name")
        try:
            check_name(name)
            if not self._enabled:
                raise BadRequest("No adapter runtime is loaded; start the server with --enable-lora.")
            self._check_new(name, request.load_inplace)
            folder = await self._folder(request)
            base = await self._base_for(request, folder)
            self._models.check_awake(self._models.find(base))
            info = AdapterInfo(name=name, model=base, path=str(folder), pinned=request.pinned)
            return await self._table.load(info, replacing=request.load_inplace, wait=request.wait)
        except BadRequest as error:
            raise InvalidUserInput(error.message, error.param) from error

    def _check_new(self, name: str, replacing: bool) -> None:
        known = self._table.get(name)
        if known is not None and known.state != "failed" and not replacing:
            raise BadRequest(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True.",
                "lora_name",
            )

    async def _folder(self, request: LoadAdapterRequest) -> Path:
        """The folder at `lora_path`, or the folder that plugins find for it as a name."""
        could_be_name = _is_hub_id(request.lora_path)
        try:
            folder = await asyncio.to_thread(self._sources.folder, request.lora_path)
        except BadRequest:
            if not could_be_name:
                raise
            folder = None  # not an allowed path, but perhaps a name
        if folder is None and could_be_name:
            for served in self._models.all:
                folder = folder or await asyncio.to_thread(self._sources.find, request.lora_path, served.info.root)
        if folder is None:
            raise NotFound(
                f"Loading lora {request.lora_name} failed: No adapter found for {request.lora_path:.1000}", "lora_path"
            )
        return folder

    async def _base_for(self, request: LoadAdapterRequest, folder: Path) -> str:
        """The name of the adapter's model: from `base_model_name`, else from the adapter's files."""
        if request.base_model_name:
            served = self._models.get(request.base_model_name)
            if served is None:
                raise BadRequest(self._models.not_found(request.base_model_name).message, "base_model_name")
            return served.info.name
        base = await asyncio.to_thread(base_of, folder, self._models.known_names())
        if base is None:
            names = ", ".join(served.name for served in self._models.all)
            raise BadRequest(
                f"`base_model_name` must name the model that the adapter is for: {names}. Its files name none of them.",
                "base_model_name",
            )
        return base

    async def unload(self, name: str) -> None:
        """Refuse new requests for an adapter; running ones finish on it. Raises `InvalidUserInput` and `NotFound`."""
        if not name:
            raise InvalidUserInput("'lora_name' needs to be provided to unload a LoRA adapter.", "lora_name")
        if self._table.get(name) is None:
            raise NotFound(f"The lora adapter '{name:.200}' cannot be found.", "lora_name")
        await self._table.unload(name)


def describe_roots(config: ServerConfig) -> str:
    """Where requests may load adapters from, for the log."""
    if config.adapter_roots is None:
        return "any folder of this machine"
    if not config.adapter_roots:
        return "no folder, because other machines can reach the server (see --lora-root and --admin-api-key)"
    return ", ".join(config.adapter_roots)


def _weighted(name: str, weight: float = 1.0) -> WeightedAdapter:
    return WeightedAdapter(AdapterRef(name=name), weight)


def _is_hub_id(path: str) -> bool:
    try:
        check_name(path, with_owner=True)
    except BadRequest:
        return False
    return True
