"""An engine client whose engine processes run a fake engine."""

import os
import select

from delta_streams import deltas_of

from quire.engine_process.client import EngineClient
from quire.params.sampling import SamplingParams
from quire.settings.model_config import ModelConfig
from quire.types import Prompt, Request

WITHIN_S = 60
"""Longest wait for another process; reached only when something is broken."""


def config(model="m", *names):
    return ModelConfig(model=model, served_model_name=names)


async def started(*models, **settings):
    return await EngineClient.start(models or (config(),), [], module="fake_engine_process", **settings)


def request(request_id, *token_ids, **params):
    return Request(id=request_id, prompt=Prompt(token_ids=token_ids or (1,)), params=SamplingParams(**params))


async def collect(client, model, *args, **params):
    return [delta async for delta in deltas_of(client, model, request(*args, **params))]


async def drain(stream):
    async for _ in stream:
        pass


def tokens(deltas):
    return [token for delta in deltas for token in delta.token_ids]


def wait_for_exit(pid):
    """Whether the process ends (or has ended)."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], WITHIN_S)[0])
    finally:
        os.close(handle)
