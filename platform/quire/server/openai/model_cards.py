"""Models and adapters as the API describes them: entries of the list, and the details of one."""

from __future__ import annotations

import time
from typing import Any

from quire.server.changes.aliases import ModelAlias
from quire.server.residency.registration import Registration
from quire.server.service.model_loads import ModelLoad
from quire.server.service.models import ServedModel
from quire.server.service.service import Service
from quire.server.tenants.ticket import may_use_model
from quire.types.adapter_info import AdapterInfo


def model_details(service: Service, found: ServedModel | ModelLoad | Registration, alias: str) -> dict[str, Any]:
    """The details of a model that is served, being loaded or unloaded, is loaded on demand or could not be loaded."""
    state = service.control.state_of(found)
    if isinstance(found, Registration):
        error = found.error.message if found.error is not None else None
        names = [info.name for info in found.adapters]
        progress = service.client.load_progress(found.name) if state == "loading" else 0.0
        return {**unloaded_card(found, alias), **_details(state, progress, error, None, names)}
    if isinstance(found, ModelLoad):
        error = found.error.message if found.error is not None else None
        card = _card(alias, found.root, None)
        return {**card, **_details(state, service.client.load_progress(found.name), error, None, [])}
    name = found.info.name
    adapters = [info.name for info in service.adapters.ready() if info.model == name]
    now = {info.name: info for info in service.client.models()}.get(name, found.info)
    sizes = {"weights": now.weight_bytes, "kv_cache": now.kv_cache_bytes, "state": now.state_bytes}
    if (sleep := service.client.sleepers.sleep_of(name)) is not None:
        sizes = {"weights": sizes["weights"] * sleep.has_weights, "kv_cache": 0, "state": 0}
    progress = service.client.load_progress(name) if state in ("sleeping", "loading") else 1.0
    return {**model_card(found, alias), **_details(state, progress, None, sizes, adapters)}


def known_model(service: Service, name: str) -> ServedModel | ModelLoad | Registration | None:
    """The model of this name, in whatever state it is; None if there is none."""
    served = service.models.get(name) or service.models.find_leaving(name)
    return served or service.model_loads.get(name) or service.residency.registrations.get(name)


def alias_details(service: Service, alias: ModelAlias) -> dict[str, Any]:
    """The details of an alias: those of its model, or of the one with the largest weight, and the models."""
    found = known_model(service, alias.first)
    if found is None:
        raise service.adapters.not_found(alias.first)
    return {**model_details(service, found, alias.name), "models": _targets(alias)}


def alias_card(service: Service, alias: ModelAlias) -> dict[str, Any]:
    """The entry of an alias in the list of models: that of its model, with the names of its models."""
    served = service.models.get(alias.first)
    info = (served.info.root, served.info.max_model_len) if served is not None else (None, None)
    return {**_card(alias.name, *info), "models": _targets(alias)}


def _targets(alias: ModelAlias) -> list[dict[str, Any]]:
    return [{"model": target.model, "weight": target.weight} for target in alias.targets if may_use_model(target.model)]


def adapter_details(service: Service, info: AdapterInfo) -> dict[str, Any]:
    """The details of an adapter that is ready, or whose model is not loaded."""
    sizes = {"weights": info.num_bytes, "kv_cache": 0, "state": 0}
    card = adapter_card(service, info)
    return {**card, **_details(card["state"], 1.0, None, sizes, [])}


def _details(
    state: str, progress: float, error: str | None, sizes: dict[str, int] | None, adapters: list[str]
) -> dict[str, Any]:
    return {"state": state, "progress": progress, "error": error, "bytes": sizes, "adapters": adapters}


def adapter_card(service: Service, info: AdapterInfo) -> dict[str, Any]:
    """The entry of an adapter in the list of models."""
    one = service.residency.registrations.get(info.model)
    if one is not None and info in one.adapters:
        base = unloaded_card(one, info.name)
    else:
        base = model_card(service.adapters.base_model(info), info.name)
    return {**base, "root": info.path, "parent": info.model, "max_model_len": None}


def unloaded_cards(service: Service) -> list[dict[str, Any]]:
    """The entries of models that are not loaded, and of their adapters."""
    found = service.residency.registrations
    cards = [unloaded_card(one, name) for one in found.unloaded() for name in filter(may_use_model, one.names)]
    return cards + [adapter_card(service, info) for info in found.kept_adapters()]


def unloaded_card(one: Registration, alias: str) -> dict[str, Any]:
    """The entry of one alias of a model that is loaded when a request asks for it."""
    length = one.info.max_model_len if one.info is not None else one.config.max_model_len
    return _card(alias, one.config.model, length, one.state_of_unloaded)


def model_card(served: ServedModel, alias: str) -> dict[str, Any]:
    """The entry of one alias of a model in the list of models."""
    return _card(alias, served.info.root, served.info.max_model_len)


def _card(alias: str, root: str | None, max_model_len: int | None, state: str = "ready") -> dict[str, Any]:
    created = int(time.time())
    permission = {
        "id": f"modelperm-{alias}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": alias,
        "object": "model",
        "created": created,
        "owned_by": "quire",
        "root": root,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [permission],
        "state": state,
    }
