"""The application with the routes of a plugin, over a client that says what a script says, without a socket."""

from functools import cache

import httpx
import httpx2
from fake_client import pretend_app
from scripted_server import REGISTRY, TALK, Scripted

from quire.hooks import registry
from quire.records import Registry
from quire.settings.server_config import ServerConfig
from quire_plugins.reasoning.formats import quire_reasoning_parsers
from quire_plugins.tools import quire_tool_parsers

URL = "http://test"
TOOL_PARSERS = {parser.name: parser for parser in quire_tool_parsers()}
REASONING_PARSERS = {parser.name: parser for parser in quire_reasoning_parsers()}


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


@cache
def messages_rig(folder, fallback="", template=TALK, tools=None, reasoning=None):
    """An application with `/v1/messages` and its scripted client, which tests share: to make one takes long.

    tools, reasoning: names of parsers.
    """
    client = Scripted("")
    parsers = {"tool_parser": TOOL_PARSERS.get(tools), "reasoning_parser": REASONING_PARSERS.get(reasoning)}
    app = api_app(folder, client, ["anthropic"], {"anthropic": {"fallback": fallback}}, template=template, **parsers)
    return app, client


def scripted_messages(folder, *replies, **kind):
    """The application of `messages_rig` and its client, which gives these replies."""
    app, client = messages_rig(folder, **kind)
    client.replies = [reply.encode() for reply in replies]
    client.requests.clear()
    return app, client
