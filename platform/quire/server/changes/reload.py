"""Reads the settings again, and applies what can change while the server runs: models, aliases, the log level."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol

from quire.errors import BadRequest, QuireError
from quire.server.changes.aliases import ModelAlias, parse_aliases
from quire.server.changes.control import RunningModels
from quire.server.changes.schemas import Reloaded
from quire.server.residency.client_loads import ClientLoads
from quire.server.service.models import ModelDirectory
from quire.server.service.new_models import NewModels
from quire.settings.model_config import ModelConfig
from quire.settings.server_config import ServerConfig

log = logging.getLogger("quire.server")

APPLIED = ("model_aliases", "log_level")
"""Settings of the server that change at run time."""


class SettingsRead(Protocol):
    """One reading of the settings; `quire.commands.serve.ServedSettings` implements it."""

    @property
    def models(self) -> Sequence[ModelConfig]: ...

    @property
    def config(self) -> ServerConfig: ...

    @property
    def plugins(self) -> Sequence[str] | None: ...

    @property
    def enable_lora(self) -> bool: ...


class SettingsSource(Protocol):
    """Where settings can be read again."""

    @property
    def file(self) -> str | None:
        """The file of --config."""
        ...

    @property
    def first(self) -> SettingsRead:
        """The settings that the server was started with."""
        ...

    def read(self) -> SettingsRead:
        """Read them again; blocks. Raises a `QuireError` if something is wrong with them."""
        ...


class Reload:
    """Compares readings of the settings with what is in force. For one event loop.

    source: None if the settings come from no file.
    """

    def __init__(
        self,
        source: SettingsSource | None,
        models: ModelDirectory,
        loads: ClientLoads,
        new_models: NewModels,
        control: RunningModels,
    ) -> None:
        self._source, self._models, self._loads = source, models, loads
        self._new_models, self._control = new_models, control
        self._lock = asyncio.Lock()
        self._unloads: set[asyncio.Task[str]] = set()
        if source is not None:
            self._configs = {config.name: config for config in source.first.models}
            self._server = source.first.config

    async def run(self) -> Reloaded:
        """Read the file and apply it. If it cannot be read, nothing changes, and `BadRequest` says why."""
        self._new_models.check_allowed()
        if self._source is None or self._source.file is None:
            raise BadRequest("The server was started without --config, so there is no file to read again.")
        async with self._lock:
            try:
                found = await asyncio.to_thread(self._source.read)
                aliases = parse_aliases(found.config.model_aliases)
            except QuireError as error:
                log.error("the settings were not read again; those before stay in force: %s", error.message)
                raise BadRequest(f"The settings before stay in force: {error.message}", "config") from error
            done = Reloaded(file=self._source.file, needs_restart=self._fixed(found))
            await self._load(found, done)
            self._set_aliases(aliases, found.config.model_aliases, done)
            await self._unload(found, done)
            self._set_log_level(found.config.log_level)
            _log(done)
            return done

    def _fixed(self, found: SettingsRead) -> list[str]:
        """The settings that have changed and need a restart."""
        assert self._source is not None
        first = self._source.first
        changed = [name for name in ("plugins", "enable_lora") if getattr(found, name) != getattr(first, name)]
        changed += [name for name in _changed(self._server, found.config) if name not in APPLIED]
        for config in found.models:
            before = self._configs.get(config.name)
            if before is not None:
                changed += [f"models.{config.name}.{name}" for name in _changed(before, config)]
        return [name.replace("_", "-") if not name.startswith("models.") else name for name in changed]

    async def _load(self, found: SettingsRead, done: Reloaded) -> None:
        for config in found.models:
            if config.name in self._configs:
                continue
            try:
                if self._models.get(config.name) is None:
                    await self._loads.load_configured(config)
                    done.loaded.append(config.name)
                self._configs[config.name] = config
            except QuireError as error:
                done.failed[config.name] = error.message

    def _set_aliases(self, aliases: Sequence[ModelAlias], given: Mapping[str, Any], done: Reloaded) -> None:
        for name in self._server.model_aliases.keys() - given.keys():
            if self._models.aliases.get(name) is not None:
                self._control.remove_alias(name)
                done.aliases.append(name)
        for alias in aliases:
            try:
                before = self._models.aliases.get(alias.name)
                if self._control.set_checked_alias(alias.name, None, alias.targets, alias.sticky) != before:
                    done.aliases.append(alias.name)
            except QuireError as error:
                done.failed[alias.name] = error.message
        self._server = replace(self._server, model_aliases=dict(given))

    async def _unload(self, found: SettingsRead, done: Reloaded) -> None:
        """Begin to unload models that the file has no more; their requests may take long to end."""
        for name in self._configs.keys() - {config.name for config in found.models}:
            task = asyncio.create_task(self._control.unload(name))
            await asyncio.sleep(0)  # what is refused is refused at once
            if task.done() and isinstance(error := task.exception(), QuireError):
                done.failed[name] = error.message
                continue
            self._unloads.add(task)
            task.add_done_callback(self._unloaded)
            done.unloading.append(name)
            del self._configs[name]

    def _unloaded(self, task: asyncio.Task[str]) -> None:
        self._unloads.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a model could not be unloaded: %s", error)

    def _set_log_level(self, level: str) -> None:
        if level != self._server.log_level:
            logging.getLogger("quire").setLevel(level.upper())
            self._server = replace(self._server, log_level=level)


def _changed(before: Any, now: Any) -> list[str]:
    """The fields in which two configs differ."""
    return [field.name for field in fields(before) if getattr(before, field.name) != getattr(now, field.name)]


def _log(done: Reloaded) -> None:
    for name, why in done.failed.items():
        log.error("from the settings that were read again, %s is not in force: %s", name, why)
    if done.needs_restart:
        log.warning("settings that have changed and need a restart: %s", ", ".join(done.needs_restart))
    changed = [("loaded", done.loaded), ("unloading", done.unloading), ("aliases", done.aliases)]
    said = "; ".join(f"{what}: {', '.join(names)}" for what, names in changed if names)
    log.info("the settings were read again from %s: %s", done.file, said or "no models or aliases changed")
