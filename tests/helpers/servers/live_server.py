"""Serves an application over a real socket, on the event loop of the test."""

import asyncio
import contextlib

from quire.server.connections.listen import bind, url_of
from quire.server.process.serve import DrainingServer
from quire.settings.server_config import ServerConfig


@contextlib.asynccontextmanager
async def live(app, config=None):
    """(URL, server); ends with a graceful shutdown."""
    config = config or ServerConfig(port=0, disable_access_log=True, log_level="warning")
    listener = bind(config)
    started = asyncio.Event()
    server = DrainingServer(app, config)
    server.on_started = started.set
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.wait({asyncio.ensure_future(started.wait()), task}, return_when=asyncio.FIRST_COMPLETED)
        yield url_of(listener, config), server
    finally:
        server.should_exit = True
        await task
        listener.close()


def chunks_of(text):
    """The JSON texts of a stream's events, without the last one, which must be [DONE]."""
    events = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert events.pop() == "[DONE]"
    return events
