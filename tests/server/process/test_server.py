"""Rules that hold for every route: keys, sizes, names, ids, shapes of errors, plugin routers."""

import asyncio
import json
import logging
import shutil
import ssl
import subprocess
import threading

import httpx
import pytest
from fake_client import PretendClient, http, info, pretend_app
from live_server import live

from quire.errors import ConfigError
from quire.records import PluginInfo, Registry
from quire.server.connections.listen import bind, check_tls
from quire.settings.server_config import ServerConfig

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


@pytest.fixture
def app(tmp_path):
    return pretend_app(tmp_path)


async def test_health_ping_version_and_load_answer(app):
    async with http(app) as client:
        for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")):
            answer = await client.request(method, path)
            assert (answer.status_code, answer.content) == (200, b"")
        assert "version" in (await client.get("/version")).json()
        assert (await client.get("/load")).json() == {"server_load": 0}


async def test_models_lists_every_alias_and_answers_by_id(tmp_path):
    pretend = PretendClient(info("a", aliases=("a", "first")), info("b"))
    async with http(pretend_app(tmp_path, pretend)) as client:
        cards = (await client.get("/v1/models")).json()
        assert [card["id"] for card in cards["data"]] == ["a", "first", "b"]
        assert cards["object"] == "list"
        card = (await client.get("/v1/models/first")).json()
        assert (card["id"], card["root"], card["max_model_len"], card["parent"]) == ("first", "models/a", 128, None)
        missing = await client.get("/v1/models/org/none")
        assert missing.status_code == 404
        assert missing.json()["error"]["message"] == "The model `org/none` does not exist. Valid aliases: a, first, b."


async def test_requests_are_routed_by_model_and_answers_carry_the_first_alias(tmp_path):
    pretend = PretendClient(info("a", aliases=("a", "first")), info("b"))
    async with http(pretend_app(tmp_path, pretend)) as client:
        for asked, answered in (("first", "a"), ("b", "b"), ("", "a"), (None, "a")):
            answer = await client.post("/v1/chat/completions", json={**CHAT, "model": asked})
            assert answer.json()["model"] == answered
        answer = await client.post("/v1/chat/completions", json={**CHAT, "model": "c"})
    assert answer.status_code == 404
    assert answer.json() == {
        "error": {
            "message": "The model `c` does not exist. Valid aliases: a, first, b.",
            "type": "NotFoundError",
            "param": "model",
            "code": 404,
        }
    }


def test_two_models_with_one_name_stop_the_start(tmp_path):
    pretend = PretendClient(info("a", aliases=("a", "x")), info("b", aliases=("b", "x")))
    with pytest.raises(ConfigError, match="Two models are called 'x'"):
        pretend_app(tmp_path, pretend)


async def test_odd_headers_do_no_harm(tmp_path):
    app = pretend_app(tmp_path, config=ServerConfig(enable_request_id_headers=True))
    odd = {"Host": "[", "X-Request-Id": "a\x7fb\t" + "x" * 999, "Accept": b"\xff"}
    async with http(app, headers=odd) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 200
    assert answer.headers["x-request-id"].startswith("abx")
    assert len(answer.headers["x-request-id"]) < 300


async def test_without_models_the_server_says_why(tmp_path):
    pretend = PretendClient()
    pretend.infos = ()
    async with http(pretend_app(tmp_path, pretend)) as client:
        assert (await client.get("/v1/models")).json() == {"object": "list", "data": []}
        answer = await client.post("/v1/completions", json={"prompt": "a"})
    assert answer.status_code == 404
    assert "No model is served" in answer.json()["error"]["message"]


async def test_a_key_guards_everything_but_the_probes(tmp_path):
    app = pretend_app(tmp_path, config=ServerConfig(api_key=("one", "two")))
    async with http(app) as client:
        for path in ("/health", "/health/live", "/health/ready", "/ping", "/metrics"):
            assert (await client.get(path)).status_code == 200
        for path in ("/v1/models", "/version", "/docs", "/openapi.json", "/plugins", "/load", "/nothing", "/health/x"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()) == (401, {"error": "Unauthorized"})
        for path in ("/v1/completions", "/generate", "/tokenize", "/detokenize"):
            assert (await client.post(path, json={})).status_code == 401
        for given in ("Bearer one", "bearer two", "BEARER  two"):
            assert (await client.get("/v1/models", headers={"Authorization": given})).status_code == 200
        for given in ("Bearer three", "Bearer", "Basic one", "one", "Bearer onetwo"):
            assert (await client.get("/v1/models", headers={"Authorization": given})).status_code == 401


async def test_behind_a_prefix_the_probes_stay_open_and_the_docs_know_it(tmp_path):
    config = ServerConfig(port=0, api_key=("k",), root_path="/api", log_level="warning")
    async with live(pretend_app(tmp_path, config=config), config) as (url, _), httpx.AsyncClient() as client:
        assert url.endswith("/api")
        origin = url.removesuffix("/api")  # the proxy strips the prefix
        assert (await client.get(f"{origin}/health")).status_code == 200
        assert (await client.get(f"{origin}/v1/models")).status_code == 401
        schema = (await client.get(f"{origin}/openapi.json", headers={"Authorization": "Bearer k"})).json()
    assert schema["servers"] == [{"url": "/api"}]


async def test_cors_preflight_passes_without_a_key(tmp_path):
    config = ServerConfig(api_key=("k",), allowed_origins=("https://a.example",))
    preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    async with http(pretend_app(tmp_path, config=config)) as client:
        answer = await client.options("/v1/completions", headers=preflight)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        refused = await client.get("/v1/models", headers={"Origin": "https://a.example"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://a.example"


async def test_request_ids_come_from_the_header_then_the_body(tmp_path):
    app = pretend_app(tmp_path, config=ServerConfig(enable_request_id_headers=True))
    async with http(app) as client:
        both = {**CHAT, "request_id": "body"}
        answer = await client.post("/v1/chat/completions", json=both, headers={"X-Request-Id": "mine"})
        assert answer.json()["id"] == "chatcmpl-mine"
        assert answer.headers["x-request-id"] == "mine"
        answer = await client.get("/version")
        assert len(answer.headers["x-request-id"]) == 32
    async with http(pretend_app(tmp_path)) as client:
        answer = await client.post("/v1/chat/completions", json=both)
    assert answer.json()["id"] == "chatcmpl-body"
    assert "x-request-id" not in answer.headers


async def test_two_requests_may_carry_the_same_id_at_once(tmp_path):
    pretend = PretendClient()
    async with http(pretend_app(tmp_path, pretend), headers={"X-Request-Id": "same"}) as client:
        answers = await asyncio.gather(*(client.post("/v1/completions", json={"prompt": "a"}) for _ in range(3)))
    assert {answer.json()["id"] for answer in answers} == {"cmpl-same"}
    assert len({request.id for request in pretend.requests}) == 3


async def test_a_body_that_announces_too_much_is_refused_unread(tmp_path):
    config = ServerConfig(port=0, max_body_bytes=1000, log_level="warning")
    async with live(pretend_app(tmp_path, config=config), config) as (url, _):
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        writer.write(head + b"Content-Length: 104857600\r\n\r\n{")
        assert b" 413 " in await reader.readline()
        writer.close()
        await writer.wait_closed()


async def test_a_body_in_chunks_is_refused_as_soon_as_it_is_too_long(tmp_path):
    config = ServerConfig(port=0, max_body_bytes=1000, log_level="warning")
    sent = 0

    async def endless():
        nonlocal sent
        while sent < 100 << 20:
            sent += 1 << 16
            yield b"x" * (1 << 16)

    async with live(pretend_app(tmp_path, config=config), config) as (url, _), httpx.AsyncClient() as client:
        headers = {"Content-Type": "application/json"}
        answer = await client.post(f"{url}/v1/completions", content=b"x" * 1001, headers=headers)
        assert answer.status_code == 413
        assert answer.json()["error"]["type"] == "RequestTooLarge"
        answer = await client.post(f"{url}/v1/completions", content=endless(), headers=headers)
        assert answer.status_code == 413


async def test_openapi_documents_routes_and_has_no_dangling_references(app):
    async with http(app) as client:
        schema = (await client.get("/openapi.json")).json()
        assert (await client.get("/docs")).status_code == 200
    text = json.dumps(schema)
    assert "HTTPValidationError" not in schema["paths"]["/v1/models/{model_id}"]["get"]["responses"]
    named = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert named <= set(schema["components"]["schemas"])
    assert "$defs" not in text
    for path in ("/v1/completions", "/v1/chat/completions", "/generate", "/tokenize", "/detokenize", "/plugins"):
        assert path in schema["paths"]


async def test_the_openapi_document_is_made_beside_the_event_loop(app, monkeypatch):
    threads, make = [], app.openapi
    monkeypatch.setattr(app, "openapi", lambda: (threads.append(threading.current_thread()), make())[1])
    async with http(app) as client:
        assert (await client.get("/openapi.json")).status_code == 200
    assert threads
    assert threading.main_thread() not in threads


async def test_docs_can_be_switched_off(tmp_path):
    async with http(pretend_app(tmp_path, config=ServerConfig(disable_fastapi_docs=True))) as client:
        for path in ("/docs", "/redoc", "/openapi.json"):
            assert (await client.get(path)).status_code == 404


async def test_plugins_are_listed_with_their_calls_of_all_processes(tmp_path):
    plugin = PluginInfo(
        name="p", module="m", distribution="d", version="1", hooks=("quire_ops",), records={"quire_ops": ("x",)}
    )
    pretend = PretendClient()
    pretend.host_plugin_rows = [{"plugin": "p", "calls": 4, "errors": 1, "seconds": 0.5}]
    app = pretend_app(tmp_path, pretend, registry=Registry(plugins=(plugin,)))
    await app.state.service.telemetry.refresh()
    async with http(app) as client:
        (row,) = (await client.get("/plugins")).json()["data"]
    assert row == {
        "name": "p",
        "distribution": "d",
        "version": "1",
        "hooks": ["quire_ops"],
        "records": {"quire_ops": ["x"]},
        "enabled": True,
        "error": None,
        "calls": 4,
        "errors": 1,
        "seconds": 0.5,
        "off": [],
        "dropped": 0,
    }


async def test_an_unexpected_exception_is_a_500_that_tells_nothing(tmp_path, caplog):
    pretend = PretendClient()
    pretend.failure = (0, RuntimeError("secret path /x"))
    async with http(pretend_app(tmp_path, pretend)) as client:
        with caplog.at_level(logging.ERROR):
            answer = await client.post("/v1/completions", json={"prompt": "a"})
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "InternalServerError"
    assert "secret" not in answer.text
    assert "secret" in caplog.text


def test_a_port_in_use_and_wrong_tls_files_are_config_errors(tmp_path):
    with bind(ServerConfig(port=0)) as taken:
        taken.listen()
        with pytest.raises(ConfigError, match=r"Cannot listen on 127.*Another --port"):
            bind(ServerConfig(port=taken.getsockname()[1]))
    with pytest.raises(ConfigError, match="not an address"):
        bind(ServerConfig(host="not a host"))
    (tmp_path / "x.pem").write_text("nonsense")
    path = str(tmp_path / "x.pem")
    with pytest.raises(ConfigError, match="TLS files"):
        check_tls(ServerConfig(ssl_keyfile=path, ssl_certfile=path))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
async def test_tls_files_make_the_server_speak_https(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*make.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    config = ServerConfig(port=0, ssl_keyfile=str(key), ssl_certfile=str(certificate), log_level="warning")
    trusting = ssl.create_default_context(cafile=certificate)
    async with (
        live(pretend_app(tmp_path, config=config), config) as (url, _),
        httpx.AsyncClient(verify=trusting) as client,
    ):
        assert url.startswith("https://")
        assert (await client.get(f"{url}/health")).status_code == 200
