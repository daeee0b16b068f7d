"""Unknown paths, other methods than a route has, keys in other headers, and what browsers may read."""

import pytest
from fake_client import PretendClient, http, info, pretend_app
from starlette.exceptions import HTTPException

from quire.settings.server_config import ServerConfig


@pytest.fixture
async def client(tmp_path):
    async with http(pretend_app(tmp_path, PretendClient(info("a"), info("b")))) as client:
        yield client


def error_of(answer):
    error = answer.json()["error"]
    assert error["code"] == answer.status_code
    return answer.status_code, error["type"], error["message"]


async def test_an_unknown_route_is_an_error_object_that_names_it(client):
    said = (404, "Not Found", "Quire has no route POST /v1/nothing.")
    assert error_of(await client.post("/v1/nothing", json={})) == said
    assert "GET /" + "x" * 199 + "." in error_of(await client.get("/" + "x" * 5000))[2]


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/completions", "POST, OPTIONS"),
        ("DELETE", "/ping", "GET, POST, HEAD, OPTIONS"),
        ("POST", "/v1/models/a", "GET, HEAD, OPTIONS"),
    ],
)
async def test_a_method_that_a_path_does_not_take_is_answered_with_those_that_it_takes(client, method, path, allow):
    answer = await client.request(method, path)
    status, kind, message = error_of(answer)
    assert (status, kind, answer.headers["allow"]) == (405, "Method Not Allowed", allow)
    assert message == f"Quire has no route {method} {path}; this path takes {allow}."


async def test_options_lists_all_methods_of_a_path(client):
    answer = await client.options("/ping")
    assert (answer.status_code, answer.content, answer.headers["allow"]) == (204, b"", "GET, POST, HEAD, OPTIONS")
    assert (await client.options("/nothing")).status_code == 404


@pytest.mark.parametrize("path", ["/health", "/ping", "/v1/models", "/v1/models/a", "/version", "/metrics", "/docs"])
async def test_head_is_get_without_the_body(client, path):
    head, get = await client.head(path), await client.get(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["content-type"] == get.headers["content-type"] if get.content else True
    assert (await client.head("/v1/completions")).status_code == 405


async def test_the_list_of_models_may_end_in_a_slash(client):
    listed = await client.get("/v1/models/")
    assert [card["id"] for card in listed.json()["data"]] == ["a", "b"]


async def test_what_a_plugin_s_router_raises_is_in_the_error_shape(tmp_path):
    app = pretend_app(tmp_path)

    @app.get("/teapot")
    async def teapot():
        raise HTTPException(418, "Short and stout.", headers={"X-Handle": "here"})

    async with http(app) as client:
        answer = await client.get("/teapot")
    assert error_of(answer) == (418, "I'm a Teapot", "Short and stout.")
    assert answer.headers["x-handle"] == "here"


async def test_keys_are_read_where_clients_of_other_services_put_them(tmp_path):
    async with http(pretend_app(tmp_path, config=ServerConfig(api_key=("one", "two")))) as client:
        for headers in ({"x-api-key": "one"}, {"api-key": "two"}, {"X-API-Key": "no", "Authorization": "Bearer one"}):
            assert (await client.get("/v1/models", headers=headers)).status_code == 200
        for headers in ({}, {"x-api-key": "Bearer one"}, {"api-key": ""}, {"x-api-key": "three"}):
            answer = await client.get("/v1/models", headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


async def test_routes_that_change_the_server_say_that_another_key_is_wanted(tmp_path):
    config = ServerConfig(api_key=("user",), admin_api_key=("admin",))
    async with http(pretend_app(tmp_path, config=config)) as client:
        for key, expected in (("user", (403, "PermissionDeniedError")), ("no", (401, "AuthenticationError"))):
            answer = await client.post("/v1/load_lora_adapter", json={}, headers={"x-api-key": key})
            assert error_of(answer)[:2] == expected
            assert "/v1/load_lora_adapter needs an admin key (--admin-api-key)" in error_of(answer)[2]
        assert (await client.post("/v1/load_lora_adapter", json={}, headers={"api-key": "admin"})).status_code == 400


async def test_scripts_of_other_origins_may_read_the_headers_that_clients_use(tmp_path):
    async with http(pretend_app(tmp_path, config=ServerConfig(allowed_origins=("http://page",)))) as client:
        answer = await client.get("/version", headers={"Origin": "http://page"})
    exposed = answer.headers["access-control-expose-headers"].split(", ")
    assert {"X-Request-Id", "Retry-After", "WWW-Authenticate"} <= set(exposed)
