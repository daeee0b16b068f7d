"""A WebSocket client of `/v1/realtime`, and what it sends and receives."""

import base64
import contextlib
import json

import numpy as np
from pydantic import TypeAdapter
from websockets.asyncio.client import connect

from quire.settings.server_config import ServerConfig

RATE = 24_000
QUIET = {"port": 0, "disable_access_log": True, "log_level": "warning"}


def quiet(**changes):
    return ServerConfig(**{**QUIET, **changes})


def pcm(seconds, rate=RATE, seed=1):
    samples = np.random.default_rng(seed).normal(0, 3000, int(seconds * rate))
    return samples.astype("<i2").tobytes()


def base64_of(audio):
    return base64.b64encode(audio).decode()


def append(audio):
    return {"type": "input_audio_buffer.append", "audio": base64_of(audio)}


COMMIT = {"type": "input_audio_buffer.commit"}


def session(**heard):
    """The object `session` of a transcription session with these fields of `audio.input`."""
    return {"type": "transcription", "audio": {"input": heard}}


class RealtimeClient:
    """Sends events as JSON and reads them."""

    def __init__(self, socket):
        self.socket = socket

    async def send(self, *events):
        for event in events:
            await self.socket.send(event if isinstance(event, str | bytes) else json.dumps(event))

    async def next(self):
        return json.loads(await self.socket.recv())

    async def until(self, *kinds):
        """The events up to the first of these types."""
        events = [await self.next()]
        while events[-1]["type"] not in kinds:
            events.append(await self.next())
        return events

    async def error(self):
        event = await self.next()
        assert event["type"] == "error", event
        return event["error"]


@contextlib.asynccontextmanager
async def realtime(url, query="", **settings):
    """A connected client, which has read the first event."""
    address = f"{url.replace('http', 'ws', 1)}/v1/realtime{query}"
    async with connect(address, **{"compression": None, "max_size": None, **settings}) as socket:
        client = RealtimeClient(socket)
        assert (await client.next())["type"] == "session.created"
        yield client


def check_events(events):
    """Every event has the type that the official SDK knows for it."""
    from openai.types.realtime.realtime_server_event import RealtimeServerEvent

    adapter = TypeAdapter(RealtimeServerEvent)
    for event in events:
        assert adapter.validate_python(event).type == event["type"]
    ids = [event["event_id"] for event in events]
    assert len(set(ids)) == len(ids)
