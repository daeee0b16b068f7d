"""Routers of plugins."""

import pytest
from fake_client import http, pretend_app
from fastapi import APIRouter

from quire.errors import PluginError
from quire.records import Registry, Router


def one_router(path):
    def build(context):
        router = APIRouter()

        @router.get(path)
        async def hello() -> dict[str, int]:
            return {"models": len(context.models())}

        return router

    return build


def with_routers(**paths):
    records = {name: Router(name=name, build=one_router(path)) for name, path in paths.items()}
    origin = {("quire_routers", name): f"plugin-{name}" for name in paths}
    return Registry(records={"quire_routers": records}, origin=origin)


async def test_routers_of_plugins_are_mounted(tmp_path):
    async with http(pretend_app(tmp_path, registry=with_routers(a="/hello"))) as client:
        assert (await client.get("/hello")).json() == {"models": 1}
        assert "/hello" in (await client.get("/openapi.json")).json()["paths"]


@pytest.mark.parametrize("paths", [{"a": "/v1/models"}, {"a": "/x", "b": "/x"}, {"a": "/openapi.json"}])
def test_a_clash_of_routes_stops_the_start(tmp_path, paths):
    with pytest.raises(PluginError, match=r"plugin 'plugin-[ab]'"):
        pretend_app(tmp_path, registry=with_routers(**paths))
