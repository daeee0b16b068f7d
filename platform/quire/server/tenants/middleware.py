"""Refuses what the key of a request may not do, before anything of its body is read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.errors import Forbidden, QuireError
from quire.server.http.auth import CALLER, CLIENT, path_of
from quire.server.http.errors import error_response
from quire.server.http.methods import allowed_methods
from quire.server.tenants.meter import Meter, rate_headers
from quire.server.tenants.scopes import ADMIN, BATCHES, LIMITED, RouteScopes
from quire.server.tenants.tenant import Caller
from quire.server.tenants.tenants import Tenants
from quire.server.tenants.ticket import CURRENT
from quire.types import in_background


class TenantMiddleware:
    """Runs requests of tenants under a ticket. It is inside of `APIKeyMiddleware`, which finds the caller."""

    def __init__(self, app: ASGIApp, tenants: Tenants, scopes: RouteScopes) -> None:
        self.app, self._tenants, self._scopes = app, tenants, scopes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller: Caller | None = scope.get(CALLER)
        if caller is not None:
            await self._run(caller, scope, receive, send)
        elif CLIENT in scope:
            await self._run_within(scope[CLIENT], scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _run(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        needed = self._scopes.find(path_of(scope))
        own = self._tenants.meters(caller)
        meters = own if needed in LIMITED else ()
        sending = _with_limits(send, meters)
        try:
            self._check_scope(caller, needed, scope)
            if meters:
                self._tenants.check_budget(caller)
            for meter in meters:
                meter.check()
            reader = _Reader(receive)
            async with _places(meters, reader) as found:
                if not found:
                    return
                for meter in meters:
                    meter.count_request()
                await self._under_ticket(caller, own, scope, reader.receive, sending)
        except QuireError as error:
            if scope.get(_STARTED):
                raise
            await error_response(error)(scope, receive, sending)

    async def _run_within(self, client: str, scope: Scope, receive: Receive, send: Send) -> None:
        """A call from within the process: part of a request that has a ticket, or work in the background."""
        if not in_background(client):
            await self.app(scope, receive, send)
            return
        try:
            caller = self._tenants.find_client(client)
            if caller is not None:
                self._tenants.check_budget(caller)
        except QuireError as error:
            await error_response(error)(scope, receive, send)
            return
        if caller is None:
            await self.app(scope, receive, send)
        else:
            await self._under_ticket(caller, (), scope, receive, send)

    async def _under_ticket(
        self, caller: Caller, meters: tuple[Meter, ...], scope: Scope, receive: Receive, send: Send
    ) -> None:
        scope[_STARTED] = True
        before = CURRENT.set(self._tenants.ticket(caller, meters))
        try:
            await self.app(scope, receive, send)
        finally:
            CURRENT.reset(before)

    def _check_scope(self, caller: Caller, needed: str | None, scope: Scope) -> None:
        path = path_of(scope)
        if needed is None:
            if "app" in scope and not allowed_methods({**scope, "type": "http"}):
                return  # no such route: status 404
            needed = ADMIN
        if not caller.may(needed):
            raise Forbidden(f"{path} needs a key with the scope `{needed}`, and this key does not have it.")
        if needed == BATCHES and caller.key is not None and caller.key.is_narrow:
            raise Forbidden(f"{path} needs a key that may use all models and adapters of its tenant.")


_STARTED = "quire.tenant_started"
"""Key in a scope: the application handles errors."""


def _with_limits(send: Send, meters: Sequence[Meter]) -> Send:
    """Adds the headers of limits to responses, if there are limits."""

    async def send_with_limits(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            headers = MutableHeaders(scope=message)
            for name, value in rate_headers(meters):
                headers[name] = value
        await send(message)

    return send_with_limits if any(meter.requests or meter.tokens for meter in meters) else send


class _Reader:
    """Receives messages, and can watch for the end of the connection before anything reads them."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ahead: deque[Message] = deque()
        self._next: asyncio.Task[Message] | None = None

    async def receive(self) -> Message:
        if self._ahead:
            return self._ahead.popleft()
        if self._next is not None:
            task, self._next = self._next, None
            return await task
        return await self._receive()

    async def disconnected(self) -> None:
        """Return when the client is gone. At most one message of a body is read ahead while the body goes on."""
        while True:
            if self._next is None:
                self._next = asyncio.ensure_future(self._receive())  # type: ignore[arg-type]
            message = await asyncio.shield(self._next)
            self._next = None
            self._ahead.append(message)
            if message["type"].endswith(".disconnect"):
                return
            if message.get("more_body", False) or message["type"].startswith("websocket"):
                await asyncio.get_running_loop().create_future()  # the rest is read when there is a place


@asynccontextmanager
async def _places(meters: Sequence[Meter], reader: _Reader) -> AsyncIterator[bool]:
    """A place of each meter; False if the client disconnected before there was one. Raises `RateLimited`."""
    taken: list[Meter] = []
    try:
        yield await _take_places(meters, taken, reader)
    finally:
        for meter in taken:
            meter.leave()


async def _take_places(meters: Sequence[Meter], taken: list[Meter], reader: _Reader) -> bool:
    for meter in meters:
        if meter.has_place:
            await meter.enter()
            taken.append(meter)
            continue
        entering, leaving = asyncio.ensure_future(meter.enter()), asyncio.ensure_future(reader.disconnected())
        try:
            await asyncio.wait((entering, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not entering.done():
                entering.cancel()
            with suppress(asyncio.CancelledError):
                await entering
                taken.append(meter)
        if meter not in taken:
            return False
    return True
