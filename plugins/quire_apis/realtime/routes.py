"""The route of `/v1/realtime`, which is a WebSocket."""

from __future__ import annotations

from fastapi import APIRouter, WebSocket

from quire.plugin import RouterContext
from quire_apis.realtime.bounds import SessionBounds
from quire_apis.realtime.session import RealtimeSession
from quire_apis.realtime.settings import MAX_NAME

SUBPROTOCOL = "realtime"
"""What OpenAI's clients in browsers offer, beside a subprotocol that carries the API key."""


def build_router(context: RouterContext) -> APIRouter:
    """The route, which transcribes with the models of `context`."""
    router = APIRouter(tags=["OpenAI"])
    bounds = SessionBounds(context.options["max_sessions"])

    @router.websocket("/v1/realtime")
    async def realtime(socket: WebSocket) -> None:
        bounds.open_session()  # refused: the handshake gets the error as an HTTP response
        model = (socket.query_params.get("model") or "")[:MAX_NAME] or None
        session = RealtimeSession(socket, context, bounds, model)
        try:
            offered: list[str] = socket.scope.get("subprotocols", [])
            await socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
            await session.run()
        finally:
            bounds.close_session(session.held)

    return router
