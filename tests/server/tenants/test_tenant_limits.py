"""Limits of tenants and keys: requests, tokens, concurrency, context, priority, budgets of a month."""

import asyncio

from tenant_rig import complete, headers_of

from quire.server.routers.route_calls import post_json
from quire.types.request import background


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


async def test_work_in_the_background_counts_for_the_month_only(rig):
    one = rig({"t": {"requests_per_minute": 1, "monthly_tokens": 10, "weight": 3}}, {"k": {"tenant": "t"}})
    body = b'{"prompt": "abcd", "max_tokens": 3}'
    answers = [await post_json(one.app, "/v1/completions", body, background("t")) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert one.engine.requests[0].client == "background:t"
    for client, status in (("gone", 403), ("key:abc", 200), ("", 200)):
        assert (await post_json(one.app, "/v1/completions", body, background(client))).status == status
