"""The application with the routes of a plugin, over a client that says what a script says, without a socket."""

import httpx
import httpx2
from fake_client import pretend_app
from scripted_server import REGISTRY, TALK

from quire.hooks import registry
from quire.records import Registry
from quire.settings.server_config import ServerConfig

URL = "http://test"


def with_plugins(plugins, options=None):
    """The records of scripted servers, and the routes of these plugins."""
    loaded = registry.load(plugins, options)
    records = {**REGISTRY.records, "quire_routers": loaded.by_hook("quire_routers")}
    return Registry(records=records, origin=loaded.origin, options=loaded.options, plugins=loaded.plugins)


def api_app(folder, pretend, plugins, options=None, template=TALK, settings=None, **served):
    """The application; plugins, options: as to `load`."""
    config = ServerConfig(**{"enable_auto_tool_choice": True, **(settings or {})})
    return pretend_app(folder, pretend, config, with_plugins(plugins, options), template=template, **served)


def in_process(app, package=httpx):
    """An HTTP client that talks to the application. package: httpx or httpx2."""
    transport = package.ASGITransport(app=app, raise_app_exceptions=False)
    return package.AsyncClient(transport=transport, base_url=URL)


def anthropic_client(app, **settings):
    """Anthropic's client of the application."""
    import anthropic

    settings = {"api_key": "none", "max_retries": 0, **settings}
    return anthropic.AsyncAnthropic(base_url=URL, http_client=in_process(app, httpx2), **settings)
