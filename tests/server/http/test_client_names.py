"""Whose a request is: an API key's, else an address's."""

import httpx
import pytest
from fake_client import PretendClient, pretend_app

from quire.errors import ConfigError
from quire.settings.server_config import ServerConfig

BODIES = {
    "/v1/completions": {"prompt": "Hi", "max_tokens": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/generate": {"prompt": "Hi", "max_tokens": 1},
}


async def clients_of(tmp_path, path, calls, **config) -> list[str]:
    """The client that the engine sees for each (address, headers)."""
    engine = PretendClient()
    app = pretend_app(tmp_path, engine, ServerConfig(**config))
    for address, headers in calls:
        transport = httpx.ASGITransport(app=app, client=(address, 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            assert (await http.post(path, json=BODIES[path], headers=headers)).status_code == 200
    return [request.client for request in engine.requests]


@pytest.mark.parametrize("path", BODIES)
async def test_without_keys_an_address_is_a_client(tmp_path, path):
    calls = [("10.0.0.1", {}), ("10.0.0.2", {}), ("10.0.0.1", {"Authorization": "Bearer made-up"})]
    assert await clients_of(tmp_path, path, calls) == ["address:10.0.0.1", "address:10.0.0.2", "address:10.0.0.1"]


async def test_a_key_is_a_client_wherever_it_comes_from_and_is_not_passed_on(tmp_path):
    calls = [(address, {"Authorization": f"Bearer {key}"}) for address in ("10.0.0.1", "::1") for key in ("one", "two")]
    one, two, *again = await clients_of(tmp_path, "/v1/completions", calls, api_key=("one", "two"))
    assert [one, two] == again
    assert one != two
    assert one.startswith("key:")
    assert "one" not in one.removeprefix("key:")


async def salts(tmp_path, *keys, **config) -> list[str | None]:
    """The cache salts that the engine sees for requests with these keys."""
    engine = PretendClient()
    app = pretend_app(tmp_path, engine, ServerConfig(**config))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as http:
        for key in keys:
            body = {**BODIES["/v1/completions"], "cache_salt": "mine"}
            headers = {"Authorization": f"Bearer {key}"}
            assert (await http.post("/v1/completions", json=body, headers=headers)).status_code == 200
    return [request.cache_salt for request in engine.requests]


async def test_with_several_keys_each_has_a_prefix_cache_of_its_own(tmp_path):
    first, second, again = await salts(tmp_path, "one", "two", "one", api_key=("one", "two"))
    assert first == again
    assert first != second


@pytest.mark.parametrize(
    "config", [{}, {"api_key": ("one",)}, {"api_key": ("one", "two"), "prefix_cache_scope": "server"}]
)
async def test_clients_share_the_prefix_cache_where_that_is_wanted(tmp_path, config):
    assert await salts(tmp_path, "one", **config) == ["mine"]


async def test_figures_need_a_key_where_that_is_wanted(tmp_path):
    app = pretend_app(tmp_path, PretendClient(), ServerConfig(api_key=("one",), metrics_require_key=True))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as http:
        assert (await http.get("/metrics")).status_code == 401
        assert (await http.get("/metrics", headers={"x-api-key": "one"})).status_code == 200
        assert (await http.get("/health")).status_code == 200
    with pytest.raises(ConfigError, match="needs --api-key"):
        ServerConfig(metrics_require_key=True)
