"""Wires the parts that load and unload models by themselves."""

from __future__ import annotations

import time
from collections.abc import Sequence

from prometheus_client.registry import CollectorRegistry

from quire.server.jobs.active import ActiveJobs
from quire.server.residency.client_loads import ClientLoads
from quire.server.residency.memory_meter import MemoryMeter
from quire.server.residency.metrics import ResidencyMetrics
from quire.server.residency.registration import Registration
from quire.server.residency.registrations import Registrations
from quire.server.residency.residency import Residency
from quire.server.residency.room import Room
from quire.server.residency.waiting import Waiting
from quire.server.service.client_protocol import ClientProtocol
from quire.server.service.model_loads import ModelLoads
from quire.server.service.models import ModelDirectory
from quire.server.service.new_models import NewModels
from quire.settings.server_config import ServerConfig


def build_residency(
    client: ClientProtocol,
    config: ServerConfig,
    models: ModelDirectory,
    loads: ModelLoads,
    new_models: NewModels,
    registry: CollectorRegistry,
    registered: Sequence[Registration],
    inflight: ActiveJobs,
) -> tuple[Residency, ClientLoads]:
    """registered: the models of the settings. registry: of metrics."""
    now = time.monotonic()
    for one in registered:
        one.last_used = now
    found = Registrations(registered, models, client.adapters, keeps_all=config.memory_budget is not None)
    meter = MemoryMeter(budget=config.memory_budget, num_engines=config.data_parallel_size)
    room = Room(found, client.adapters, meter, lambda: client.memory_limit, inflight.models, client.sleepers.sleep_of)
    waiting = Waiting(config.max_model_waiters, config.model_wait_timeout_s)
    metrics = ResidencyMetrics(config.metrics_prefix, registry)
    residency = Residency(found, room, loads, client, waiting, metrics)
    metrics.states = lambda: {one.name: residency.state_of(one) for one in found}
    metrics.num_waiting = lambda: waiting.count
    metrics.memory = room.describe
    return residency, ClientLoads(residency, loads, new_models, waiting)
