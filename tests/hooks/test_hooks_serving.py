"""Hooks around a server: gates, routes, commands, metrics, options."""

import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_client import http, pretend_app
from fastapi import APIRouter
from hook_rig import SUMMARY
from plugin_site import PluginSite

from quire.hooks.registry import load, with_options
from quire.params.sampling import SamplingParams
from quire.records import Context, GateRequest, Registry, RequestRefused, Router, RouterContext
from quire.types import EngineStats


def test_hook_request_gates_cap_and_refuse(tour: PluginSite) -> None:
    registry = load(["budget"], {"budget": {"max_tokens": "5", "requests": 2, "window_s": 10}})
    now = [0.0]
    context = Context(options=registry.options["budget"])
    gate = sys.modules["quire_tour.budget"].Budget(context, clock=lambda: now[0])

    def ask(user: str, **body: object) -> GateRequest | RequestRefused:
        return gate.admit(GateRequest(route="/v1/completions", model="m", body=body, headers={"x-user": user}))

    assert ask("ann", max_tokens=50, prompt="p").body == {"max_tokens": 5, "prompt": "p"}
    assert ask("ann").body == {"max_tokens": 5}
    assert ask("ann") == RequestRefused("At most 2 requests in 10 s, ann.", 429)
    assert ask("bob", max_completion_tokens=3).body == {"max_completion_tokens": 3}
    now[0] = 10.0
    assert isinstance(ask("ann"), GateRequest)


async def test_hook_request_gates_stand_before_every_generating_route(tour: PluginSite, tmp_path: Path) -> None:
    registry = load(["budget"], {"budget": {"max_tokens": 3, "requests": 1}})
    async with http(pretend_app(tmp_path, registry=registry)) as client:
        answer = await client.post("/v1/completions", json={"model": "tiny", "prompt": "x", "max_tokens": 9})
        assert answer.json()["usage"]["completion_tokens"] == 3
        refused = await client.post("/v1/completions", json={"model": "tiny", "prompt": "x"})
        assert refused.status_code == 429
        assert "At most 1 requests" in refused.json()["error"]["message"]


async def test_hook_routers_add_routes(tour: PluginSite, tmp_path: Path) -> None:
    registry = load(["request-log"], {"request-log": {"path": str(tmp_path / "log.jsonl")}})
    async with http(pretend_app(tmp_path / "model", registry=registry)) as client:
        assert (await client.get("/request-log")).json() == []
        registry.request_finished(SUMMARY)
        (row,) = (await client.get("/request-log", params={"count": 5})).json()
        assert (row["request_id"], row["e2e_s"]) == ("r1", 0.3)


async def test_hook_routers_generate_with_a_context(tmp_path: Path) -> None:
    def build(context: RouterContext) -> APIRouter:
        router = APIRouter()

        @router.get("/haiku")
        async def haiku(model: str | None = None, count: int = 3) -> dict[str, Any]:
            output = await context.generate("Once", SamplingParams(max_tokens=count), model)
            return {"models": [info.name for info in context.models()], "ids": len(output.outputs[0].token_ids)}

        return router

    hook = "quire_routers"
    registry = Registry(
        records={hook: {"haiku": Router("haiku", build)}}, origin={(hook, "haiku"): "p"}, options={"p": {"a": 1}}
    )
    async with http(pretend_app(tmp_path, registry=registry)) as client:
        assert (await client.get("/haiku")).json() == {"models": ["tiny"], "ids": 3}
        assert (await client.get("/haiku", params={"model": "other"})).status_code == 404
        refused = await client.get("/haiku", params={"count": 10**9})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")


def test_hook_commands_get_the_registry(tour: PluginSite, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from quire.cli import main

    path = str(tmp_path / "log.jsonl")
    load(["request-log"], {"request-log": {"path": path}}).request_finished(SUMMARY)
    words = ["request-log", "--plugins", "request-log", "--request-log.path", path, "--count", "3"]
    assert main(words) == 0
    assert re.search(r"r1 +tiny +3\+2 +0.300 s +stop", capsys.readouterr().out)


def test_hook_metrics_exporters_observe_statistics(tour: PluginSite) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(10)
        registry = load(["statsd"], {"statsd": {"port": str(server.getsockname()[1]), "prefix": "x"}})
        exporter = registry.by_hook("quire_metrics_exporters")["statsd"].build(
            Context(options=registry.options["statsd"])
        )
        exporter.observe(EngineStats(model="org/tiny", num_running=7))
        lines = server.recv(65536).decode().splitlines()
    assert "x.org_tiny.num_running:7|g" in lines


def test_hook_options_reach_builds_questions_and_events(tour: PluginSite) -> None:
    registry = load(["short-first"])
    assert registry.options["short-first"] == {"tokens_per_place": 50.0}
    changed = with_options(registry, {"short-first": {"tokens_per_place": "7"}})
    assert changed.options["short-first"] == {"tokens_per_place": 7.0}
    assert registry.options["short-first"] == {"tokens_per_place": 50.0}
