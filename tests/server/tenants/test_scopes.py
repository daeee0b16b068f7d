"""Which key may use which route: a table over all routes of the server and of the bundled plugins."""

from __future__ import annotations

import pytest
from fake_client import pretend_app
from tenant_rig import headers_of, write_keys

from quire.hooks.registry import load
from quire.server.app import ROUTERS
from quire.server.http.auth import OPEN_PATHS, APIKeyMiddleware
from quire.server.tenants.middleware import TenantMiddleware
from quire.server.tenants.scopes import ADMIN, LOAD, SCOPES, RouteScopes
from quire.server.tenants.tenants import Tenants


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    return pretend_app(tmp_path_factory.mktemp("app"), registry=load(None))


@pytest.fixture(scope="module")
def scopes(app):
    return RouteScopes(record.scopes for record in app.state.service.registry.all(ROUTERS))


def routes_of(routers):
    """(method, path) of every route, and of every router within."""
    for route in routers:
        if (inner := getattr(route, "original_router", None)) is not None:
            yield from routes_of(inner.routes)
        else:
            for method in sorted(getattr(route, "methods", None) or {"GET"}):
                yield method, route.path


def test_every_route_names_the_scope_that_it_needs(app, scopes):
    routes = set(routes_of(app.routes))
    assert len(routes) > 60
    undeclared = sorted({path for _, path in routes if scopes.find(path) is None})
    assert undeclared == [], "declare a scope in quire.server.tenants.scopes.ROUTES, or in the plugin's Router"
    assert {scopes.find(path) for _, path in routes} == SCOPES.keys()


async def statuses(app, scopes, folder, keys, calls):
    """The status of each call with each key, if only keys and scopes decide: 200 is what routes answer."""
    write_keys(folder / "keys.yaml", {"t": {"scopes": ["admin"]}}, keys)
    tenants = Tenants(folder / "keys.yaml")

    async def answer(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    guarded = APIKeyMiddleware(TenantMiddleware(answer, tenants, scopes), (), (), OPEN_PATHS, tenants.find)
    found = {}
    for method, path in calls:
        for key in [*keys, None]:
            sent = []
            header = headers_of(key)["Authorization"].encode() if key else b""
            scope = {
                "type": "http",
                "method": method,
                "path": path,
                "headers": [(b"authorization", header)],
                "app": app,
            }

            async def send(message, sent=sent):
                sent.append(message)

            await guarded(scope, None, send)
            found[method, path, key] = sent[0]["status"]
    return found


async def test_a_key_may_use_the_routes_of_its_scopes_only(app, scopes, tmp_path):
    keys = {name: {"tenant": "t", "scopes": [name]} for name in SCOPES}
    calls = sorted(
        {
            (method, path.replace("{", "").replace(":path}", "").replace("}", ""))
            for method, path in routes_of(app.routes)
        }
    )
    found = await statuses(app, scopes, tmp_path, keys, calls)
    for (method, path, key), status in found.items():
        if path in OPEN_PATHS or method == "OPTIONS":
            expected = 200
        elif key is None:
            expected = 401
        else:
            needed = scopes.find(path)
            expected = 200 if key in (needed, ADMIN) else 403
        assert status == expected, (method, path, key)


async def test_routes_without_a_scope_need_admin_and_unknown_paths_are_not_found(app, scopes, tmp_path):
    @app.get("/new-route")
    async def new_route():
        raise AssertionError("it is not called")

    keys = {name: {"tenant": "t", "scopes": [name]} for name in (ADMIN, LOAD)}
    found = await statuses(app, scopes, tmp_path, keys, [("GET", "/new-route"), ("GET", "/nothing-here")])
    assert found["GET", "/new-route", ADMIN] == 200
    assert found["GET", "/new-route", LOAD] == 403
    assert found["GET", "/nothing-here", LOAD] == 200  # the application answers 404


async def test_a_key_cannot_do_more_than_its_tenant(app, scopes, tmp_path):
    write_keys(
        tmp_path / "keys.yaml",
        {"t": {"scopes": ["read", "generate"]}},
        {"k": {"tenant": "t", "scopes": ["generate", "admin"]}},
    )
    (key,) = Tenants(tmp_path / "keys.yaml")._file.keys
    caller = Tenants(tmp_path / "keys.yaml").find(bytes.fromhex(key))
    assert caller.scopes == {"generate"}
