"""ServedAdapters: the adapters that requests may name, and how they get there: loaded by a client, or looked for.

The host's process reads them; here it is known which names there are and what they mean. It knows no routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from quire.adapter_info import AdapterInfo
from quire.adapter_sources import AdapterSources, base_of, check_name
from quire.errors import BadRequest, NotFound, Overloaded
from quire.server.engines import AdapterClient
from quire.server.models import Served, ServedModels
from quire.server.schema_adapters import AdapterChoice, LoadAdapterRequest
from quire.types import AdapterRef, AdapterUse

MOST_SEARCHES = 64
"""Names that plugins are asked for at the same time."""

MOST_LISTED = 20
"""Adapters that an error message names."""


class InvalidUserInput(BadRequest):
    """What was asked of the adapters cannot be."""

    type = "InvalidUserInput"


class ServedAdapters:
    """`enabled`: whether there is a runtime for any kind of adapter."""

    def __init__(self, models: ServedModels, table: AdapterClient, sources: AdapterSources, enabled: bool) -> None:
        self._models, self._table, self._sources, self._enabled = models, table, sources, enabled
        self._searches: dict[str, asyncio.Task[AdapterInfo | None]] = {}

    def ready(self) -> list[AdapterInfo]:
        """Those that requests may name."""
        return [info for info in self._table.all() if info.state == "ready"]

    async def look(self) -> list[AdapterInfo]:
        """All there are, as they stand now."""
        return await self._table.look()

    # --- what requests name ------------------------------------------------------------------------

    async def find(self, name: str | None, choices: Sequence[AdapterChoice] | None = None) -> Served:
        """The model, or the adapter and its model, called `name`, with the adapters of `choices` instead of its own.

        A name that is not known is looked for by plugins, which may take long. Raises NotFound, BadRequest.
        """
        if not name and choices:
            name = (await self._known(choices[0].name)).model
        served = self._models.get(name) if name or self._models.all else self._models.find(name)
        if served is None:
            info = await self._known(name or "")
            if choices:
                raise BadRequest(
                    f"`model` names an adapter; with `adapters` it must name the model itself, `{info.model}`.", "model"
                )
            return self._base(info).using(info.name, (_use(info.name),))
        if not choices:
            return served
        for choice in choices:
            info = await self._known(choice.name)
            if info.model != served.info.name:
                raise BadRequest(f"The adapter `{info.name}` belongs to `{info.model}`, not to `{name}`.", "adapters")
        return served.using(served.name, tuple(_use(choice.name, choice.weight) for choice in choices))

    def unknown(self, name: str) -> NotFound:
        """The error for a name that means nothing; it says which names there are."""
        names = [info.name for info in self.ready()]
        more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
        listed = f" Adapters: {', '.join(names[:MOST_LISTED])}{more}." if names else ""
        return NotFound(f"{self._models.unknown(name).message}{listed}", "model")

    async def _known(self, name: str) -> AdapterInfo:
        info = self._table.get(name) or await self._search(name)
        if info is None:
            raise self.unknown(name)
        if info.state == "failed":
            raise BadRequest(f"The adapter `{info.name}` could not be loaded: {info.error}", "model")
        return info

    async def _search(self, name: str) -> AdapterInfo | None:
        """Ask plugins; requests for the same name wait for the same answer."""
        if not self._enabled:
            return None
        try:
            check_name(name, with_owner=True)
        except BadRequest:
            return None
        if name not in self._searches:
            if len(self._searches) >= MOST_SEARCHES:
                raise Overloaded(f"Plugins are being asked for {MOST_SEARCHES} other adapters; try again later.")
            search = self._searches[name] = asyncio.ensure_future(self._find_and_load(name))
            search.add_done_callback(lambda _: self._searches.pop(name, None))
        return await asyncio.shield(self._searches[name])

    async def _find_and_load(self, name: str) -> AdapterInfo | None:
        for served in self._models.all:
            folder = await asyncio.to_thread(self._sources.find, name, served.info.root)
            if folder is None:
                continue
            base = await asyncio.to_thread(base_of, folder, self._models.called()) or served.info.name
            try:
                return await self._table.load(AdapterInfo(name=name, model=base, path=str(folder)))
            except BadRequest as error:
                known = self._table.get(name)
                if known is not None and known.state == "ready":  # somebody was quicker
                    return known
                raise BadRequest(
                    f"LoRA adapter '{name}' was found but could not be loaded: {error.message}", "model"
                ) from error
        return None

    def _base(self, info: AdapterInfo) -> Served:
        return next(served for served in self._models.all if served.info.name == info.model)

    def parent(self, info: AdapterInfo) -> Served:
        """The model that an adapter belongs to."""
        return self._base(info)

    # --- what clients ask for ----------------------------------------------------------------------

    async def load(self, asked: LoadAdapterRequest) -> AdapterInfo:
        """Load an adapter. Raises InvalidUserInput and NotFound; then nothing has changed."""
        name = asked.lora_name
        if not name or not asked.lora_path:
            raise InvalidUserInput("Both 'lora_name' and 'lora_path' must be provided.", "lora_name")
        if asked.is_3d_lora_weight:
            raise InvalidUserInput("`is_3d_lora_weight` is not supported by this server.", "is_3d_lora_weight")
        if self._models.get(name) is not None:
            raise InvalidUserInput(f"The lora adapter '{name:.200}' conflicts with a served base model.", "lora_name")
        try:
            check_name(name)
            if not self._enabled:
                raise BadRequest("No adapter runtime is loaded; start the server with --enable-lora.")
            self._check_new(name, asked.load_inplace)
            folder = await self._folder(asked)
            base = await self._base_for(asked, folder)
            info = AdapterInfo(name=name, model=base, path=str(folder), pinned=asked.pinned)
            return await self._table.load(info, replacing=asked.load_inplace, wait=asked.wait)
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

    async def _folder(self, asked: LoadAdapterRequest) -> Path:
        """The folder at a path, or that plugins know under the path as a name."""
        could_be_name = _is_hub_id(asked.lora_path)
        try:
            folder = await asyncio.to_thread(self._sources.folder, asked.lora_path)
        except BadRequest:
            if not could_be_name:
                raise
            folder = None  # as a path it may not be used, but a name is none
        if folder is None and could_be_name:
            for served in self._models.all:
                folder = folder or await asyncio.to_thread(self._sources.find, asked.lora_path, served.info.root)
        if folder is None:
            raise NotFound(
                f"Loading lora {asked.lora_name} failed: No adapter found for {asked.lora_path:.1000}", "lora_path"
            )
        return folder

    async def _base_for(self, asked: LoadAdapterRequest, folder: Path) -> str:
        """The name of the model that the adapter is for: what was asked for, the only one, or what its files say."""
        if asked.base_model_name:
            served = self._models.get(asked.base_model_name)
            if served is None:
                raise BadRequest(self._models.unknown(asked.base_model_name).message, "base_model_name")
            return served.info.name
        base = await asyncio.to_thread(base_of, folder, self._models.called())
        if base is None:
            names = ", ".join(served.name for served in self._models.all)
            raise BadRequest(
                f"Say in `base_model_name` which model the adapter is for: {names}. Its own files name none of them.",
                "base_model_name",
            )
        return base

    async def unload(self, name: str) -> None:
        """Let no request name an adapter any more. Raises InvalidUserInput, NotFound."""
        if not name:
            raise InvalidUserInput("'lora_name' needs to be provided to unload a LoRA adapter.", "lora_name")
        if self._table.get(name) is None:
            raise NotFound(f"The lora adapter '{name:.200}' cannot be found.", "lora_name")
        await self._table.unload(name)


def _use(name: str, weight: float = 1.0) -> AdapterUse:
    return AdapterUse(AdapterRef(name=name), weight)


def _is_hub_id(path: str) -> bool:
    try:
        check_name(path, with_owner=True)
    except BadRequest:
        return False
    return True
