"""How a replica answers calls with an application of ASGI. Needs no Ray and no model."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from quire.ray.calls import HttpCall
from quire.ray.replica import Replica

CALL = HttpCall("POST", "/x", b"/x", b"", (), None, b"body")
START = {"type": "http.response.start", "status": 200, "headers": []}


class StartedReplica(Replica):
    """One that has nothing to end."""

    def __init__(self, app):
        self._app = app

    def __del__(self):
        pass


def part(body, more):
    return {"type": "http.response.body", "body": body, "more_body": more}


async def test_messages_come_as_the_application_sends_them():
    goes_on = asyncio.Event()

    async def app(scope, receive, send):
        assert (scope["path"], (await receive())["body"]) == ("/x", b"body")
        await send(START)
        await send(part(b"a", True))
        await goes_on.wait()
        await send(part(b"b", False))

    answer = StartedReplica(app).call(CALL)
    assert await anext(answer) == [START, part(b"a", True)]
    goes_on.set()
    assert [one async for one in answer] == [[part(b"b", False)]]


async def test_closing_the_answer_ends_the_request():
    ended = asyncio.Event()

    async def app(scope, receive, send):
        await send(START)
        try:
            await receive()
            await receive()  # until the client has gone
        finally:
            ended.set()

    answer = StartedReplica(app).call(CALL)
    assert await anext(answer) == [START]
    await answer.aclose()
    await ended.wait()


async def test_an_exception_of_the_application_reaches_the_caller():
    async def app(scope, receive, send):
        await send(START)
        raise LookupError("x")

    answer = StartedReplica(app).call(CALL)
    assert await anext(answer) == [START]
    with pytest.raises(LookupError):
        await anext(answer)


async def test_autoscaling_sees_the_fullest_cache_and_all_that_wait():
    async def stats():
        pages = [(10, 5, 1), (10, 8, 2), (0, 0, 0)]
        return [SimpleNamespace(num_pages=n, num_pages_used=used, num_waiting=w) for n, used, w in pages]

    made = StartedReplica(None)
    made._client = SimpleNamespace(stats=stats)
    assert await made.record_autoscaling_stats() == {"kv_cache_usage": 0.8, "num_requests_waiting": 3.0}
