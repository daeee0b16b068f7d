"""What the routes of a plugin may do with the server: answers, streams, bodies, calls of other routes, errors."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_client import PretendClient, http, pretend_app
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from quire.errors import EngineDied, QuireError
from quire.plugin import AnswerDelta, RequestModel, Router, RouterContext, json_body
from quire.records import Registry
from quire.settings.server_config import ServerConfig
from quire_testing import byte_tokenizer


class Ask(RequestModel):
    """The body of the routes of these tests."""

    words: str
    count: int = 3


def build(context: RouterContext) -> APIRouter:
    router = APIRouter(prefix="/ask")

    async def deltas(request: Request, ask: Ask) -> AsyncGenerator[AnswerDelta, None]:
        if request.url.path.endswith("complete"):
            answer = await context.complete(request, {"prompt": ask.words, "max_tokens": ask.count, "logprobs": 1})
        else:
            messages = [{"role": "user", "content": ask.words}]
            answer = await context.chat(request, {"messages": messages, "max_tokens": ask.count})
        async for delta in answer.deltas():
            yield delta
        yield AnswerDelta(-1, text=f"{answer.model} {answer.usage().prompt > 0} {answer.usage().output}")

    @router.post("/whole/{kind}", openapi_extra=json_body(Ask))
    async def whole(request: Request, kind: str) -> list[Any]:
        ask = await context.read(request, Ask)
        return [[part.text, part.finish_reason, len(part.logprobs)] async for part in deltas(request, ask)]

    @router.post("/stream", openapi_extra=json_body(Ask))
    async def stream(request: Request) -> Response:
        ask = await context.read(request, Ask)

        async def pieces() -> AsyncGenerator[bytes, None]:
            async for part in deltas(request, ask):
                yield part.text.encode()

        return await context.stream(request, pieces(), lambda error: f"<{error.status}>".encode(), "text/plain")

    @router.post("/models")
    async def change(request: Request) -> JSONResponse:
        """Make all changes that a plugin may make, and say what there is after each."""
        models, folder = context.model_control, (await request.json())["folder"]
        await models.load("late", folder)
        states = [models.states()]
        await models.sleep("late", level=2)
        states.append({**models.states(), "asleep": str(models.is_sleeping("late"))})
        assert await models.wake("late")
        models.set_alias("chat", models={"tiny": 1, "late": 3})
        names = models.alias_weights()
        models.remove_alias("chat")
        await models.unload("late")
        states.append(models.states())
        return JSONResponse([states, names])

    @router.post("/call")
    async def call(request: Request) -> Response:
        body = await request.json()
        status, found = await context.call("/v1/completions", body, "somewhere")
        return JSONResponse([status, found])

    return router


def error_body(error: QuireError, request_id: str | None) -> Mapping[str, Any]:
    return {"oops": error.status, **({"id": request_id} if request_id else {})}


@pytest.fixture
def registry() -> Registry:
    record = Router("ask", build, bodies=lambda: [Ask], error_body=error_body)
    return Registry(records={"quire_routers": {"ask": record}}, origin={("quire_routers", "ask"): "p"})


async def test_a_route_gets_the_deltas_of_a_chat_and_of_a_prompt(registry: Registry, tmp_path: Path) -> None:
    pretend = PretendClient(reply="Hello")
    async with http(pretend_app(tmp_path, pretend, registry=registry)) as client:
        chat = (await client.post("/ask/whole/chat", json={"words": "hi", "count": 3})).json()
        assert "".join(text for text, _, _ in chat[:-1]) == "Hel"
        assert chat[-2][1] == "length"
        assert chat[-1][0] == "tiny True 3"
        prompt = (await client.post("/ask/whole/complete", json={"words": "hi", "count": 2})).json()
        assert "".join(text for text, _, _ in prompt[:-1]) == "He"
        assert sum(count for _, _, count in prompt) == 2
        schema = (await client.get("/openapi.json")).json()
        assert "Ask" in schema["components"]["schemas"]


async def test_a_stream_of_a_route_ends_with_its_own_failure(registry: Registry, tmp_path: Path) -> None:
    pretend = PretendClient(reply="Hello")
    async with http(pretend_app(tmp_path, pretend, registry=registry)) as client:
        good = await client.post("/ask/stream", json={"words": "hi", "count": 4})
        assert (good.text, good.headers["content-type"]) == ("Helltiny True 4", "text/plain; charset=utf-8")
        pretend.failure = (2, EngineDied("gone"))
        assert (await client.post("/ask/stream", json={"words": "hi", "count": 4})).text.endswith("<503>")
        pretend.failure = (0, EngineDied("gone"))
        early = await client.post("/ask/stream", json={"words": "hi", "count": 4})
        assert (early.status_code, early.json()) == (503, {"oops": 503})
        assert not pretend.running


async def test_a_client_that_disconnects_ends_the_request_of_a_route(registry: Registry, tmp_path: Path) -> None:
    pretend = PretendClient(reply="Hello")
    pretend.hold = asyncio.Event()
    app = pretend_app(tmp_path, pretend, registry=registry)
    gone = asyncio.Event()
    sent = [{"type": "http.request", "body": json.dumps({"words": "hi", "count": 4}).encode(), "more_body": False}]

    async def receive() -> Any:
        if sent:
            return sent.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message.get("body"):
            gone.set()

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/ask/stream", "query_string": b"", "headers": headers}
    await app({**scope, "client": ("127.0.0.1", 1), "http_version": "1.1", "server": None}, receive, send)
    assert pretend.aborted
    assert not pretend.running


async def test_a_route_calls_another_without_a_key_as_the_client_it_names(registry: Registry, tmp_path: Path) -> None:
    pretend = PretendClient(reply="Hello")
    config = ServerConfig(api_key=("secret",))
    async with http(pretend_app(tmp_path, pretend, config, registry)) as client:
        key = {"Authorization": "Bearer secret"}
        body = {"prompt": "hi", "max_tokens": 3}
        status, found = (await client.post("/ask/call", json=body, headers=key)).json()
        assert (status, found["choices"][0]["text"]) == (200, "Hel")
        assert pretend.requests[-1].client == "somewhere"
        status, found = (await client.post("/ask/call", json={"prompt": 7}, headers=key)).json()
        assert (status, found["error"]["code"]) == (400, 400)
        streamed = await client.post("/ask/call", json={**body, "stream": True}, headers=key)
        assert streamed.json() == {"oops": 400}


async def test_errors_at_the_paths_of_a_router_have_its_shape(registry: Registry, tmp_path: Path) -> None:
    config = ServerConfig(api_key=("secret",))
    async with http(pretend_app(tmp_path, config=config, registry=registry)) as client:
        refused = await client.post("/ask/stream", json={})
        assert (refused.status_code, refused.json()) == (401, {"oops": 401})
        assert refused.headers["www-authenticate"] == "Bearer"
        client.headers["x-api-key"] = "secret"
        assert (await client.post("/ask/stream", json={"words": 3})).json() == {"oops": 400}
        assert (await client.get("/ask/stream")).json() == {"oops": 405}
        assert (await client.post("/v1/completions", json={})).json()["error"]["code"] == 400


async def test_a_plugin_changes_models(tmp_path: Path) -> None:
    byte_tokenizer(tmp_path / "late")
    registry = Registry(
        records={"quire_routers": {"ask": Router("ask", build)}}, origin={("quire_routers", "ask"): "p"}
    )
    async with http(pretend_app(tmp_path, PretendClient(), registry=registry)) as client:
        answer = await client.post("/ask/models", json={"folder": str(tmp_path / "late")})
    assert answer.status_code == 200, answer.text
    states, names = answer.json()
    assert states == [
        {"late": "ready", "tiny": "ready"},
        {"late": "sleeping", "tiny": "ready", "asleep": "True"},
        {"tiny": "ready"},
    ]
    assert names == {"chat": {"tiny": 1, "late": 3}}
