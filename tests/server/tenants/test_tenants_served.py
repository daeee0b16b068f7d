"""What requests with keys of a key file are answered: models that they may use, limits, budgets, shares."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from dataclasses import replace

import pytest
from fake_client import PretendClient, info
from tenant_rig import TenantRig, headers_of, secret_of, write_keys

from quire.server.routers.route_calls import post_json
from quire.server.tenants.tenants import Tenants
from quire.types.adapter_info import AdapterInfo
from quire.types.request import background

BODY = {"prompt": "abcd", "max_tokens": 3}


@pytest.fixture
def rig(tmp_path, monkeypatch):
    def build(tenants, keys, *infos, **more) -> TenantRig:
        engine = PretendClient(*infos) if infos else PretendClient()
        return TenantRig(tmp_path, tenants, keys, engine, monkeypatch=monkeypatch, **more)

    return build


async def complete(client, key, status=200, **changes):
    answer = await client.post("/v1/completions", json={**BODY, **changes}, headers=headers_of(key))
    assert answer.status_code == status, answer.text
    return answer


async def test_keys_of_a_tenant_are_one_client_with_its_weight_and_prefix_cache(rig):
    one = rig(
        {"acme": {"weight": 2}, "open": {"share_cache": True}},
        {k: {"tenant": t} for k, t in (("a", "acme"), ("b", "acme"), ("c", "open"))},
    )
    async with one.http() as client:
        for key in "abc":
            await complete(client, key, cache_salt="mine")
    assert [request.client for request in one.engine.requests] == ["acme", "acme", "open"]
    assert [request.weight for request in one.engine.requests] == [2.0, 2.0, 1.0]
    assert [request.cache_salt for request in one.engine.requests] == ["acme\0mine", "acme\0mine", "mine"]


async def test_keys_of_the_command_line_work_beside_the_file(rig):
    one = rig({"acme": {}}, {"a": {"tenant": "acme"}}, config={"api_key": ("plain",)})
    async with one.http() as client:
        for key, status in (("plain", 200), (secret_of("a"), 200), ("other", 401), (None, 401)):
            answer = await client.post("/v1/completions", json=BODY, headers={"x-api-key": key} if key else {})
            assert answer.status_code == status
    assert one.engine.requests[0].client.startswith("key:")
    assert one.engine.requests[1].client == "acme"


async def test_models_and_adapters_that_a_key_may_not_use_do_not_exist_for_it(rig):
    keys = {"all": {"tenant": "t"}, "some": {"tenant": "t", "models": ["b*"], "adapters": ["mine-*"]}}
    one = rig({"t": {"scopes": ["generate", "read", "load"]}}, keys, info("a"), info("b", aliases=("bee", "other")))
    for name in ("mine-1", "theirs"):
        one.engine.adapters.infos[name] = AdapterInfo(name=name, model="a", path="/p", state="ready", revision=1)
    async with one.http() as client:

        async def listed(key):
            return [card["id"] for card in (await client.get("/v1/models", headers=headers_of(key))).json()["data"]]

        assert await listed("all") == ["a", "b", "bee", "other", "mine-1", "theirs"]
        assert await listed("some") == ["b", "bee", "mine-1"]
        adapters = (await client.get("/v1/adapters", headers=headers_of("some"))).json()["data"]
        assert [card["id"] for card in adapters] == ["mine-1"]
        assert (await complete(client, "some")).json()["model"] == "b"  # the default is one that it may use
        assert (await complete(client, "some", model="mine-1")).json()["model"] == "mine-1"
        for hidden in ("a", "other", "theirs"):
            said = (await complete(client, "some", 404, model=hidden)).json()["error"]["message"]
            unknown = (await complete(client, "some", 404, model="nothing")).json()["error"]["message"]
            assert said == unknown.replace("nothing", hidden)
            assert not {"`a`", " a,", "theirs", "other"} & set(unknown.split())
            found = await client.get(f"/v1/models/{hidden}", headers=headers_of("some"))
            assert found.status_code == 404
            unload = {"name": hidden} if hidden != "theirs" else {"lora_name": hidden}
            path = "/v1/unload_model" if hidden != "theirs" else "/v1/unload_lora_adapter"
            assert (await client.post(path, json=unload, headers=headers_of("some"))).status_code == 404
        load = await client.post("/v1/load_model", json={"name": "x", "model": "/m"}, headers=headers_of("some"))
        assert load.status_code == 403
        detail = await client.get("/v1/models/bee", headers=headers_of("some"))
        assert detail.status_code == 200


async def test_a_key_that_may_use_no_model_gets_none_by_default(rig):
    one = rig({"t": {"models": ["nothing-*"]}}, {"k": {"tenant": "t"}}, info("a"))
    async with one.http() as client:
        await complete(client, "k", 404)
        await complete(client, "k", 404, model="a")
    assert one.engine.requests == []


async def test_requests_per_minute_are_refused_with_the_time_to_wait(rig):
    one = rig({"t": {"requests_per_minute": 2}}, {"k": {"tenant": "t"}, "other": {"tenant": "t"}})
    async with one.http() as client:
        first = await complete(client, "k")
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert first.headers["x-ratelimit-reset-requests"] == "30s"
        await complete(client, "other")  # keys of a tenant share its limits
        refused = await complete(client, "k", 429)
        assert refused.headers["retry-after"] == "30"
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("RateLimitError", 429)
        assert "2 requests per minute" in error["message"]
        one.clock.now += 29
        await complete(client, "k", 429)
        one.clock.now += 1
        await complete(client, "k")
        one.clock.now -= 500  # a clock set back neither gives nor takes
        await complete(client, "k", 429)
        one.clock.now += 30
        await complete(client, "k")
        assert (await client.get("/v1/models", headers=headers_of("k"))).status_code == 200  # runs no model


async def test_tokens_per_minute_count_prompts_at_once_and_answers_when_they_end(rig):
    one = rig({"t": {"tokens_per_minute": 60}}, {"k": {"tenant": "t"}})
    async with one.http() as client:
        first = await complete(client, "k", prompt="x" * 40)
        assert first.headers["x-ratelimit-limit-tokens"] == "60"
        after = await complete(client, "k", prompt="x" * 10)  # 43 + 13 used
        assert after.headers["x-ratelimit-remaining-tokens"] == "4"  # when its answer began: 3 more come
        refused = await complete(client, "k", 429, prompt="x" * 10)
        assert "60 tokens per minute" in refused.json()["error"]["message"]
        never = await complete(client, "k", 400, prompt="x" * 61)
        assert "retry-after" not in never.headers
        one.clock.now += 60
        await complete(client, "k", prompt="x" * 60)
        await complete(client, "k", 429)
    assert len(one.engine.requests) == 3


async def test_a_request_that_fails_without_an_answer_costs_no_tokens(rig):
    one = rig({"t": {"tokens_per_minute": 60}}, {"k": {"tenant": "t"}})
    one.engine.failure = (0, RuntimeError("the engine"))
    async with one.http() as client:
        await complete(client, "k", 500, prompt="x" * 60)
        one.engine.failure = None
        await complete(client, "k", prompt="x" * 60)


async def test_requests_at_once_wait_in_a_bounded_queue(rig):
    one = rig({"t": {"concurrent_requests": 1, "queued_requests": 1}}, {"k": {"tenant": "t"}})
    one.engine.hold = asyncio.Event()
    async with one.http() as client:
        running = asyncio.create_task(complete(client, "k"))
        await one.engine.progress.wait()
        waiting = asyncio.create_task(complete(client, "k"))
        (meter,) = one.tenants._meters.values()
        while not meter._waiting:
            await asyncio.sleep(0)
        refused = await complete(client, "k", 429)
        assert "1 requests at once and 1 waiting" in refused.json()["error"]["message"]
        assert refused.headers["retry-after"] == "1"
        assert len(one.engine.requests) == 1
        one.engine.hold.set()
        await asyncio.gather(running, waiting)
        await complete(client, "k")
    assert meter.num_running == 0


async def test_a_client_that_leaves_the_queue_takes_no_place(rig):
    one = rig({"t": {"concurrent_requests": 1, "queued_requests": 1}}, {"k": {"tenant": "t"}})
    one.engine.hold = asyncio.Event()
    async with one.http() as client:
        running = asyncio.create_task(complete(client, "k"))
        await one.engine.progress.wait()
        (meter,) = one.tenants._meters.values()
        gone = asyncio.Event()
        messages = [{"type": "http.request", "body": b"{}", "more_body": False}]

        async def receive():
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            raise AssertionError("it is not answered")

        header = (b"authorization", headers_of("k")["Authorization"].encode())
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [header], "query_string": b""}
        leaving = asyncio.create_task(one.app(scope, receive, send))
        while not meter._waiting:
            await asyncio.sleep(0)
        gone.set()
        await leaving
        assert not meter._waiting
        one.engine.hold.set()
        await running
    assert meter.num_running == 0


async def test_a_key_has_limits_of_its_own_within_those_of_its_tenant(rig):
    tenant = {"requests_per_minute": 10, "max_context": 100}
    one = rig({"t": tenant}, {"k": {"tenant": "t", "requests_per_minute": 1, "max_context": 60}})
    async with one.http() as client:
        chat = {"messages": [{"role": "user", "content": "x"}]}
        answer = await client.post("/v1/chat/completions", json=chat, headers=headers_of("k"))
        assert answer.headers["x-ratelimit-limit-requests"] == "1"
        (request,) = one.engine.requests
        assert len(request.prompt.token_ids) + request.params.max_tokens == 60
        assert "API key `k`" in (await complete(client, "k", 429)).json()["error"]["message"]


async def test_the_context_of_a_key_is_bounded(rig):
    one = rig({"t": {"max_context": 10}}, {"k": {"tenant": "t"}})
    async with one.http() as client:
        for changes in ({"prompt": "x" * 11}, {"prompt": "xx", "max_tokens": 9}):
            assert "maximum context length is 10 tokens" in (await complete(client, "k", 400, **changes)).text
        await complete(client, "k", prompt="xx", max_tokens=8)
        chat = {"messages": [{"role": "user", "content": "x" * 50}]}
        assert (await client.post("/v1/chat/completions", json=chat, headers=headers_of("k"))).status_code == 400


async def test_a_priority_beyond_the_ceiling_is_lowered(rig):
    one = rig({"t": {}, "vip": {"priority_ceiling": -5}}, {"k": {"tenant": "t"}, "v": {"tenant": "vip"}})
    async with one.http() as client:
        for key, priority in (("k", -10), ("k", 3), ("v", -10), ("v", -2)):
            await complete(client, key, priority=priority)
    assert [request.priority for request in one.engine.requests] == [0, 3, -5, -2]


async def test_the_budget_of_a_month_survives_a_restart(rig):
    file = {"t": {"monthly_tokens": 10}}, {"k": {"tenant": "t"}}
    one = rig(*file)
    async with one.http() as client:
        await complete(client, "k")
        await complete(client, "k")  # 14 tokens in all: an answer that has begun is finished
        refused = await complete(client, "k", 429)
        assert "used its 10 tokens of 2026-11" in refused.json()["error"]["message"]
        assert int(refused.headers["retry-after"]) == 3 * 86400 + 12 * 3600
    one.tenants.close()
    again = rig(*file)
    async with again.http() as client:
        await complete(client, "k", 429)
        again.clock.now += 4 * 86400
        await complete(client, "k")


async def test_expired_and_revoked_keys_are_refused(rig):
    one = rig({"t": {}}, {"old": {"tenant": "t", "expires": "2026-11-27T12:00:10Z"}, "k": {"tenant": "t"}})
    async with one.http() as client:
        await complete(client, "old")
        one.clock.now += 10
        refused = await complete(client, "old", 401)
        assert "expired" in refused.text
        assert refused.headers["www-authenticate"] == "Bearer"
        one.clock.now -= 10_000  # a clock set back revives no key for longer than it was set back while it ran
        write_keys(one.path, {"t": {}}, {"k": {"tenant": "t"}})
        assert one.tenants.reload()
        await complete(client, "old", 401)
        await complete(client, "k")


async def test_a_malformed_file_leaves_the_one_before_in_force(rig, caplog):
    one = rig({"t": {}}, {"k": {"tenant": "t"}})
    one.path.write_text("tenants: [")
    with caplog.at_level(logging.ERROR):
        assert not one.tenants.reload()
    assert "the one before stays in force" in caplog.text
    async with one.http() as client:
        await complete(client, "k")


async def test_the_server_follows_the_file(rig, monkeypatch):
    monkeypatch.setattr("quire.server.tenants.tenants.POLL_S", 0.001)
    one = rig({"t": {}}, {"k": {"tenant": "t"}})
    watching = asyncio.create_task(one.tenants.watch())
    write_keys(one.path, {"t": {"requests_per_minute": 7}}, {"new": {"tenant": "t"}})
    while "new" not in {key.id for key in one.tenants._file.keys.values()}:
        await asyncio.sleep(0.001)
    watching.cancel()
    async with one.http() as client:
        await complete(client, "k", 401)
        assert (await complete(client, "new")).headers["x-ratelimit-limit-requests"] == "7"


async def test_no_key_is_in_answers_or_logs(rig, caplog):
    one = rig({"t": {"requests_per_minute": 1}}, {"k": {"tenant": "t", "scopes": ["generate"]}})
    with caplog.at_level(logging.DEBUG):
        async with one.http() as client:
            answers = [await complete(client, "k"), await complete(client, "k", 429)]
            answers.append(await client.get("/v1/models", headers=headers_of("k")))
            answers.append(await client.get("/metrics"))
    assert answers[2].status_code == 403
    for text in (caplog.text, *(answer.text + str(answer.headers) for answer in answers)):
        assert secret_of("k") not in text


async def test_work_in_the_background_counts_for_the_month_only(rig):
    one = rig({"t": {"requests_per_minute": 1, "monthly_tokens": 10, "weight": 3}}, {"k": {"tenant": "t"}})
    body = b'{"prompt": "abcd", "max_tokens": 3}'
    answers = [await post_json(one.app, "/v1/completions", body, background("t")) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert one.engine.requests[0].client == "background:t"


def test_a_lookup_compares_a_key_with_no_other(tmp_path):
    """So ten thousand keys are found as quickly as one."""

    class Keys(dict):
        def __iter__(self):
            raise AssertionError("a lookup goes through all keys")

        keys = values = items = __iter__

    write_keys(tmp_path / "keys.yaml", {"t": {}}, {f"k{i}": {"tenant": "t"} for i in range(100)})
    tenants = Tenants(tmp_path / "keys.yaml")
    tenants._file = replace(tenants._file, keys=Keys(tenants._file.keys))
    assert tenants.find(hashlib.sha256(secret_of("k7").encode()).digest()).key.id == "k7"
    assert tenants.find(b"unknown") is None
