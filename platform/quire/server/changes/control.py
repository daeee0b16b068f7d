"""What routes and plugins may do to the models of a running server: load, unload, sleep, wake, aliases.

Functions that requests lead to raise `BadRequest` where `NewModels.check_allowed` does. The routes need an admin key
besides; a plugin must check the permissions of a request before it calls a function.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from quire.errors import BadRequest, NotFound, QuireError
from quire.server.changes.aliases import AliasTarget, ModelAlias, Sticky, checked_targets, parse_aliases
from quire.server.residency.client_loads import ClientLoads
from quire.server.residency.registration import Registration
from quire.server.schemas.models import LoadModelRequest, UnloadModelRequest
from quire.server.service.client_protocol import SleepersProtocol
from quire.server.service.model_loads import ModelLoad, ModelLoads
from quire.server.service.models import ModelDirectory, ServedModel
from quire.server.service.new_models import NewModels, check_model_name
from quire.server.tenants.ticket import may_use_model

log = logging.getLogger("quire.server")

LEVELS, MODES, TAGS = (1, 2), ("abort", "wait"), ("weights", "kv_cache")


class RunningModels:
    """Changes the models of one server. For one event loop."""

    def __init__(
        self,
        models: ModelDirectory,
        loads: ModelLoads,
        client_loads: ClientLoads,
        new_models: NewModels,
        sleepers: SleepersProtocol,
        has_adapter: Callable[[str], bool],
        is_restarting: Callable[[], bool] = lambda: False,
    ) -> None:
        """is_restarting: whether a new engine process loads the models again."""
        self._models, self._loads, self._client_loads = models, loads, client_loads
        self._new_models, self._is_restarting = new_models, is_restarting
        self._sleepers, self._has_adapter = sleepers, has_adapter

    # --- models ------------------------------------------------------------------------------------

    def states(self) -> dict[str, str]:
        """The state by name of every model that the sender of the current request may use: unloaded, loading, ready,
        sleeping, draining or failed."""
        found: dict[str, ServedModel | ModelLoad | Registration] = dict(self._loads.all())
        found |= {served.info.name: served for served in (*self._models.leaving, *self._models.all)}
        found |= {one.name: one for one in self._client_loads.registrations.unloaded()}
        return {name: self.state_of(one) for name, one in found.items() if may_use_model(name)}

    def state_of(self, found: ServedModel | ModelLoad | Registration) -> str:
        """The state of one model, as `states` has it."""
        if isinstance(found, Registration):
            return found.state_of_unloaded
        if isinstance(found, ModelLoad):
            return found.state
        if found in self._models.leaving:
            return "draining"
        if self._sleepers.sleep_of(found.info.name) is not None:
            return "sleeping"
        return "loading" if self._is_restarting() else "ready"

    async def load(
        self, name: str, model: str, settings: Mapping[str, Any] | None = None, wait: bool = True
    ) -> ModelLoad | ServedModel | Registration:
        """Load a model, or register one that is to be loaded on demand; see `ClientLoads.load`."""
        fields = LoadModelRequest(name=name, model=model, settings=dict(settings or {}), wait=wait)
        return await self._client_loads.load(fields)

    async def unload(self, name: str, force: bool = False) -> str:
        """Unload a model; see `ClientLoads.unload`. Without `force`, an alias must not stand for it."""
        if self._models.aliases.get(name) is not None:
            raise BadRequest(f"`{name}` is an alias: DELETE /v1/model_aliases?alias= removes it.", "name")
        base = self._name_of(name)
        if base is not None and not force and (aliases := self._models.aliases.of_model(base)):
            raise BadRequest(
                f"The alias `{aliases[0]}` stands for the model `{base}`: give it another model first, or send "
                "`force`.",
                "name",
            )
        return await self._client_loads.unload(UnloadModelRequest(name=name, force=force))

    def _name_of(self, name: str) -> str | None:
        """The name of the model that has a name or alias, in memory or not; None if there is none."""
        served = self._models.get(name) if name else None
        if served is not None:
            return served.info.name
        one = self._client_loads.registrations.get(name)
        return None if one is None else one.name

    # --- sleep -------------------------------------------------------------------------------------

    async def sleep(self, model: str | None = None, level: int = 1, mode: str = "abort") -> None:
        """Free the KV cache of a model, at level 2 its weights too; None: of all models.

        mode: `abort` ends running requests with an error, `wait` lets them finish. Raises `BadRequest` and `NotFound`.
        """
        self._new_models.check_allowed()
        if level not in LEVELS:
            raise BadRequest(f"`level` must be 1 or 2; got {level}.", "level")
        if mode not in MODES:
            raise BadRequest(f"`mode` must be abort or wait; got {mode:.50}.", "mode")
        names = self._chosen(model)
        log.info("falling asleep, level %d: %s", level, ", ".join(names) or "no model")
        await _all(self._sleepers.sleep(name, level, mode == "abort") for name in names)

    async def wake(self, model: str | None = None, tags: Collection[str] | None = None) -> bool:
        """Restore a model, None: all models, or parts of it; returns whether all of it is awake.

        tags: `weights` and `kv_cache`, None = both. Raises `BadRequest`, `NotFound`, and what loading raises.
        """
        self._new_models.check_allowed()
        if wrong := [tag for tag in tags or () if tag not in TAGS]:
            raise BadRequest(f"`tags` may be weights and kv_cache; got {wrong[0]:.50}.", "tags")
        names = self._chosen(model)
        try:
            await _all(self._wake(name, tuple(tags or TAGS)) for name in names)
        except QuireError as error:
            raise self._loads.client_error(error) from error
        return not any(self._sleepers.sleep_of(name) for name in names)

    async def _wake(self, name: str, tags: tuple[str, ...]) -> None:
        async with self._client_loads.room_to_wake(name):
            await self._sleepers.wake(name, tags)

    def is_sleeping(self, model: str | None = None) -> bool:
        """Whether a model sleeps; None: whether all models do, and there is one. Raises `NotFound`."""
        names = self._chosen(model)
        return bool(names) and all(self._sleepers.sleep_of(name) is not None for name in names)

    def _chosen(self, model: str | None) -> list[str]:
        if model is None:
            return [served.info.name for served in self._models.all]
        self._models.check_stays(model)
        alias = self._models.aliases.get(model)
        return [self._models.find(name).info.name for name in ([model] if alias is None else _names(alias))]

    # --- aliases -----------------------------------------------------------------------------------

    def aliases(self) -> Sequence[ModelAlias]:
        """All aliases that were set while the server runs, or by --model-aliases."""
        return self._models.aliases.all()

    def set_alias(
        self,
        alias: str,
        model: str | None = None,
        models: Mapping[str, float] | Sequence[AliasTarget] | None = None,
        sticky: Sticky = "user",
    ) -> ModelAlias:
        """Let a name stand for a model, or for several by weight, from the next request on.

        Raises `BadRequest` for a name that a model or an adapter has and for weights that are not above 0, and
        `NotFound` for an unknown model.
        """
        self._new_models.check_allowed()
        if isinstance(models, Mapping):
            models = [AliasTarget(name, weight) for name, weight in models.items()]
        return self.set_checked_alias(alias, model, models, sticky)

    def alias_weights(self) -> dict[str, dict[str, float]]:
        """The aliases, and the weight of each of their models."""
        return {alias.name: {target.model: target.weight for target in alias.targets} for alias in self.aliases()}

    def set_first_aliases(self, given: Mapping[str, Any]) -> None:
        """Set the aliases of --model-aliases. Raises ConfigError, `BadRequest` and `NotFound`."""
        for alias in parse_aliases(given):
            self.set_checked_alias(alias.name, None, alias.targets, alias.sticky)

    def set_checked_alias(
        self, alias: str, model: str | None, models: Sequence[AliasTarget] | None, sticky: Sticky = "user"
    ) -> ModelAlias:
        """`set_alias` for a caller that may."""
        check_model_name(alias, "alias")
        self._loads.check_not_a_model(alias, "alias")
        if self._name_of(alias) is not None:
            raise BadRequest(f"The name `{alias}` is in use by a model.", "alias")
        targets = checked_targets(model, models)
        param = "model" if models is None else "models"
        made = ModelAlias(alias, tuple(AliasTarget(self._target(t.model, param), t.weight) for t in targets), sticky)
        checked_targets(None, made.targets)  # two names of one model
        before = self._models.aliases.get(alias)
        self._models.aliases.set(made)
        log.info(
            "the alias %s stands for %s%s", alias, _shown(made), f", no more for {_shown(before)}" if before else ""
        )
        return made

    def _target(self, name: str, param: str) -> str:
        """The name of the model of a target."""
        if self._models.aliases.get(name) is not None:
            raise BadRequest(f"`{name:.200}` is an alias; an alias must stand for a model.", param)
        if self._client_loads.registrations.get(name) is None:  # else it comes back when a request asks for it
            self._models.check_stays(name)
        if (base := self._name_of(name)) is not None:
            return base
        if self._has_adapter(name):
            raise BadRequest(f"`{name:.200}` is an adapter; an alias must stand for a model.", param)
        raise NotFound(self._models.not_found(name).message, param)

    def remove_alias(self, alias: str) -> None:
        """Let a name stand for nothing. Raises `NotFound`."""
        self._new_models.check_allowed()
        self._models.aliases.remove(alias)
        log.info("the alias %s is removed", alias)


def _names(alias: ModelAlias) -> list[str]:
    return [target.model for target in alias.targets]


def _shown(alias: ModelAlias) -> str:
    if len(alias.targets) == 1:
        return alias.targets[0].model
    return ", ".join(f"{target.model} ({target.weight:g})" for target in alias.targets)


async def _all(calls: Any) -> None:
    """Wait for all calls, then raise the first error."""
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
