"""Names the plugin in whose route an exception was raised. It knows no route."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from quire.counting import plugin_behind, plugin_fault
from quire.errors import QuireError
from quire.records import Registry
from quire.server.errors import ClientGone


class NamePlugin:
    """Middleware: what code of a plugin raises, SystemExit included, becomes `PluginFailed`; all else passes."""

    def __init__(self, app: ASGIApp, registry: Registry) -> None:
        self._app, self._registry = app, registry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP exchange."""
        try:
            await self._app(scope, receive, send)
        except (QuireError, ClientGone, asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as error:
            plugin = plugin_behind(self._registry, error)
            if plugin is None:
                raise
            raise plugin_fault(self._registry, plugin, None, error) from error
