"""Takes HTTP requests, has a replica answer each, and asks another one if a replica is lost before it has begun."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError
from starlette.types import Message, Receive, Scope, Send

from quire.errors import EngineDied, NotSupported, Overloaded, QuireError, TooLarge
from quire.ray.all_replicas import AllReplicas
from quire.ray.calls import HttpCall, Messages
from quire.ray.stored_adapters import StoredAdapters, application_name
from quire.server.http.errors import as_quire_error, error_object, error_response

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

log = logging.getLogger("quire.server")

PAUSES_S = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Before each further try of a request whose replica was lost: Ray may need a while to notice that it is."""

UNAVAILABLE = 503

OF_ONE_PROCESS = ("/v1/batches", "/v1/files", "/v1/load_model", "/v1/unload_model")
"""Paths whose answers depend on the replica. Requests for them are refused."""

LOST = "The replica that computed this answer was lost."


class Ingress:
    """An application of ASGI in front of the replicas. max_body_bytes: of a request, as it is sent. stored: those that
    requests have loaded, None = those of this application of Ray Serve.
    """

    def __init__(
        self, replicas: DeploymentHandle[Any], max_body_bytes: int, stored: StoredAdapters | None = None
    ) -> None:
        self._replicas = replicas.options(method_name="call", stream=True)
        self._all = AllReplicas(replicas, stored or StoredAdapters(application_name()))
        self._max_body_bytes = max_body_bytes

    def __serve_build_asgi_app__(self) -> Any:
        """Called by Ray Serve."""

        async def application(scope: Scope, receive: Receive, send: Send) -> None:  # uvicorn takes no bound method
            await self.answer(scope, receive, send)

        return application

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One exchange of ASGI. There is nothing to do for the lifespan; WebSockets are refused."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003, "reason": "WebSockets are not served behind Ray."})
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await _lifespan(receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._body(receive)
        if body is None:
            return
        call = HttpCall.from_scope(scope, body)
        try:
            self._check(call)
        except QuireError as error:
            await error_response(error)(scope, receive, send)
            return
        answering = asyncio.create_task(self._pass_on(call, scope, receive, send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            leaving.cancel()
            answering.cancel()

    async def _body(self, receive: Receive) -> bytes | None:
        """The body, or a little more than is allowed of it; None if the client has gone."""
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if not message.get("more_body", False) or size > self._max_body_bytes:
                return b"".join(parts)

    def _check(self, call: HttpCall) -> None:
        if len(call.body) > self._max_body_bytes:
            raise TooLarge(f"The request body may have at most {self._max_body_bytes} bytes.")
        for path in OF_ONE_PROCESS:
            if call.path == path or call.path.startswith(path + "/"):
                raise NotSupported(f"{path} is not served behind Ray, because each replica would have its own.")

    async def _pass_on(self, call: HttpCall, scope: Scope, receive: Receive, send: Send) -> None:
        begun: Message | None = None
        try:
            async for messages in self._messages(call):
                for message in messages:
                    begun = begun or message
                    await send(message)
        except Exception as caught:
            error = _as_error(caught)
            if begun is None:
                await error_response(error)(scope, receive, send)
            elif _is_stream(begun):
                event = b"data: " + msgspec.json.encode(error_object(error)) + b"\n\n"
                await send({"type": "http.response.body", "body": event, "more_body": False})
            else:  # ends the connection: the body is shorter than its length
                raise

    async def _messages(self, call: HttpCall) -> AsyncIterator[Messages]:
        """The messages of the first replica that begins to answer, or of all together."""
        if self._all.answers(call):
            yield (await self._all.answer(call)).messages()
            return
        for tries, pause_s in enumerate((*PAUSES_S, None)):
            has_begun = False
            answer = self._replicas.remote(call)
            try:
                async for messages in answer:
                    if not tries and messages[0].get("status") == UNAVAILABLE:
                        break
                    has_begun = True
                    yield messages
                else:
                    return
            except RayActorError:
                if has_begun or pause_s is None:
                    raise
            finally:
                answer.cancel()
            log.warning("a replica did not begin to answer %s %s; another one is asked", call.method, call.path)
            await asyncio.sleep(pause_s or 0.0)


def _as_error(error: Exception) -> QuireError:
    if isinstance(error, RayActorError):
        return EngineDied(LOST)
    if isinstance(error, BackPressureError):
        return Overloaded("Too many requests wait for a replica; try again later.")
    return as_quire_error(error)


def _is_stream(start: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream") for name, value in start["headers"]
    )


async def _left(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return
