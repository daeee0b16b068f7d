"""The plugin `realtime`: transcription over a WebSocket, `/v1/realtime`, as in OpenAI's Realtime API and in vLLM.

`routes` has the route. `session` runs a connection: it reads events (`client_events`), changes settings (`settings`),
keeps audio within bounds (`bounds`) as PCM (`pcm`), and sends the events of the client's dialect (`dialects`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from quire.plugin import Option, Router, RouterContext, hookimpl

if TYPE_CHECKING:
    from fastapi import APIRouter


def _build(context: RouterContext) -> APIRouter:
    from quire_apis.realtime.routes import build_router

    return build_router(context)


@hookimpl
def quire_routers() -> Iterable[Router]:
    """The WebSocket of transcription sessions."""
    yield Router("realtime", _build, scopes={"/v1/realtime": "audio"})


@hookimpl
def quire_options() -> Iterable[Option]:
    """How many sessions there may be, how much audio each may hold, and how long one may be idle."""
    yield Option("max_sessions", int, 64, "maximum number of open sessions")
    yield Option("max_audio_s", float, 600.0, "maximum seconds of audio that a session holds until it is transcribed")
    yield Option(
        "idle_timeout_s", float, 300.0, "seconds after which a session without an event of its client is closed"
    )
