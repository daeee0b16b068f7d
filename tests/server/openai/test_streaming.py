"""Streams that end early: the client disconnects, the engine process dies, or the server stops."""

import asyncio
import json

import httpx
import pytest
from fake_client import PretendClient, http, pretend_app
from live_server import chunks_of, live
from reference_cycles import cyclic

from quire.errors import BadRequest, EngineDied, Overloaded
from quire.server.http.sse import EventStream, cancel_on_disconnect
from quire.server.openai import format as wire
from quire.settings.server_config import ServerConfig

LONG = {"prompt": "abc", "max_tokens": 100}
QUIET = {"port": 0, "disable_access_log": True, "log_level": "error"}


@pytest.fixture
def pretend():
    return PretendClient()


@pytest.fixture
def held(pretend):
    pretend.hold = asyncio.Event()
    return pretend


async def gone_from(pretend):
    """Wait until the engine runs nothing any more."""
    while pretend.running:
        await asyncio.sleep(0)


@pytest.mark.parametrize("path", ["/v1/completions", "/generate", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_stops_its_generation(tmp_path, held, path, stream):
    said = {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"prompt": "a"}
    async with live(pretend_app(tmp_path, held)) as (url, _):
        client = httpx.AsyncClient(timeout=60)
        body = {**said, "max_tokens": 50, "stream": stream, "n": 2}
        asking = asyncio.create_task(client.post(url + path, json=body))
        await held.progress.wait()
        asking.cancel()
        await client.aclose()
        await asyncio.wait_for(gone_from(held), 60)
        assert held.aborted == [held.requests[0].id]


async def test_a_client_that_goes_away_before_the_first_token_stops_its_generation(tmp_path, held):
    held.held_at = 0
    async with live(pretend_app(tmp_path, held)) as (url, _):
        client = httpx.AsyncClient(timeout=60)
        asking = asyncio.create_task(client.post(f"{url}/v1/completions", json={**LONG, "stream": True}))
        await held.progress.wait()
        asking.cancel()
        await client.aclose()
        await asyncio.wait_for(gone_from(held), 60)
    assert held.aborted == [held.requests[0].id]


async def test_of_many_prompts_all_are_aborted(tmp_path, held):
    async with live(pretend_app(tmp_path, held)) as (url, _):
        client = httpx.AsyncClient(timeout=60)
        body = {**LONG, "prompt": ["a", "b", "c"], "stream": True}
        async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
            async for _line in answer.aiter_lines():
                break
        await client.aclose()
        await asyncio.wait_for(gone_from(held), 60)
    assert sorted(held.aborted) == sorted(request.id for request in held.requests)


async def test_a_host_that_dies_mid_stream_ends_it_with_an_error_object(tmp_path, pretend):
    pretend.failure = (3, EngineDied("The host ended."))
    async with http(pretend_app(tmp_path, pretend)) as client:
        answer = await client.post("/v1/completions", json={**LONG, "stream": True})
        events = [json.loads(event) for event in chunks_of(answer.text)]
        assert answer.status_code == 200
        assert [event["choices"][0]["text"] for event in events[:-1]] == ["H", "e", "l"]
        error = {"message": "The host ended.", "type": "ServiceUnavailableError", "param": None, "code": 503}
        assert events[-1] == {"error": error}
        answer = await client.post("/v1/completions", json=LONG)
        assert (answer.status_code, answer.json(), answer.headers["retry-after"]) == (503, {"error": error}, "5")
        pretend.failure = None
        assert (await client.post("/v1/completions", json=LONG)).status_code == 200


async def test_one_failing_prompt_of_many_ends_all(tmp_path, pretend):
    pretend.failure = (3, EngineDied("The host ended."))
    async with http(pretend_app(tmp_path, pretend)) as client:
        answer = await client.post("/v1/completions", json={**LONG, "prompt": ["a", "b"]})
    assert answer.status_code == 503
    assert not pretend.running


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("error", "status"), [(Overloaded("Too many."), 503), (BadRequest("No.", "prompt"), 400)])
async def test_what_the_engine_refuses_has_its_status_even_for_streams(tmp_path, pretend, stream, error, status):
    pretend.failure = (0, error)
    async with http(pretend_app(tmp_path, pretend)) as client:
        answer = await client.post("/v1/completions", json={**LONG, "stream": stream})
    assert answer.status_code == status
    assert answer.json()["error"]["message"] == error.message
    assert (answer.headers.get("retry-after") == "1") == (status == 503)


async def test_a_shutdown_waits_for_what_is_in_flight_and_takes_nothing_new(tmp_path, held):
    config = ServerConfig(shutdown_timeout_s=60, **QUIET)
    async with live(pretend_app(tmp_path, held, config=config), config) as (url, server), httpx.AsyncClient() as client:
        body = {**LONG, "max_tokens": 6, "stream": True}
        asking = asyncio.create_task(client.post(f"{url}/v1/completions", json=body, timeout=60))
        await held.progress.wait()
        server.stop()
        while not server.config.app.state.service.inflight.closed:
            await asyncio.sleep(0)
        async with http(server.config.app) as inside:
            assert (await inside.get("/health")).status_code == 503
            refused = await inside.post("/v1/completions", json=LONG)
            assert (refused.status_code, "shutting down" in refused.text) == (503, True)
        held.hold.set()
        events = [json.loads(event) for event in chunks_of((await asking).text)]
    assert "".join(event["choices"][0]["text"] for event in events) == "Hello,"
    assert events[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("prompt", ["a", ["a", "b"]])
async def test_a_shutdown_ends_what_takes_too_long_with_an_error(tmp_path, held, prompt):
    config = ServerConfig(shutdown_timeout_s=0.05, **QUIET)
    async with live(pretend_app(tmp_path, held, config=config), config) as (url, server), httpx.AsyncClient() as client:
        both = [
            asyncio.create_task(
                client.post(f"{url}/v1/completions", json={**LONG, "prompt": prompt, "stream": stream}, timeout=60)
            )
            for stream in (True, False)
        ]
        while len(held.running) < 2 * len(prompt):
            await asyncio.sleep(0)
        server.stop()
        streamed, whole = await asyncio.gather(*both)
    assert json.loads(chunks_of(streamed.text)[-1])["error"]["code"] == 503
    assert (whole.status_code, "shutting down" in whole.text) == (503, True)
    assert not held.running
    assert len(held.aborted) == 2 * len(prompt)


async def never():
    await asyncio.Event().wait()


async def test_a_stream_ends_its_source_when_sending_fails():
    ended = asyncio.Event()

    async def run(put):
        try:
            while True:
                put(b"data: x\n\n")
                await asyncio.sleep(0)
        finally:
            ended.set()

    async def send(message):
        if message["type"] == "http.response.body":
            raise OSError("broken pipe")

    await EventStream(run)({"type": "http"}, never, send)
    assert ended.is_set()


async def test_a_stream_ends_its_source_when_the_client_goes_while_the_answer_begins():
    ended, beginning = asyncio.Event(), asyncio.Event()

    async def run(put):
        try:
            put(b"first")
            await never()
        finally:
            ended.set()

    async def receive():
        await beginning.wait()
        return {"type": "http.disconnect"}

    async def send(_):
        beginning.set()
        await never()

    stream = EventStream(run)
    await stream.wait_first(receive)
    await stream({"type": "http"}, receive, send)
    assert ended.is_set()


async def test_events_that_come_while_a_client_does_not_read_are_sent_together():
    going_on, sent = asyncio.Event(), []

    async def run(put):
        for i in range(5):
            put(b"%d" % i)
            await asyncio.sleep(0)
        going_on.set()

    async def send(message):
        sent.append(message.get("body"))
        await going_on.wait()

    stream = EventStream(run)
    await stream.wait_first(never)
    await stream({"type": "http"}, never, send)
    assert b"".join(sent[1:]) == b"01234"
    assert len(sent) <= 4, "the head, what was there, what came meanwhile, the end"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("more", [{}, {"logprobs": True}, {"n": 2}, {"stream_options": {"include_usage": True}}])
async def test_every_text_and_every_name_survives_in_the_events(tmp_path, path, more):
    """Events are put together from parts that were encoded before; no text may be taken for a part."""
    reply = 'a"b\\\n\ue000}]é🙂' + wire.PLACEHOLDER
    pretend = PretendClient(reply=reply)
    name = f'"{wire.PLACEHOLDER}\\'
    said = {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"prompt": "a"}
    if "chat" not in path and "logprobs" in more:
        more = {"logprobs": 1}
    count = len(reply.encode())
    async with http(pretend_app(tmp_path, pretend)) as client:
        body = {**said, **more, "max_tokens": count, "stream": True, "request_id": name}
        events = [json.loads(event) for event in chunks_of((await client.post(path, json=body)).text)]
    assert {event["id"].split("-", 1)[1] for event in events} == {name}
    parts = [choice for event in events for choice in event["choices"] if choice["index"] == 0]
    assert "".join(part["delta"].get("content", "") if "chat" in path else part["text"] for part in parts) == reply
    assert [part["finish_reason"] for part in parts if part["finish_reason"]] == ["length"]
    keys = {frozenset(part) for part in parts if not part["finish_reason"]}
    assert len(keys) == 1, "all events of a text look the same"


async def test_work_for_a_client_that_stays_is_simply_done():
    async def receive():
        await asyncio.Event().wait()

    async def work():
        return 7

    assert await cancel_on_disconnect(receive, work()) == 7


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_leaves_nothing_for_the_garbage_collector(tmp_path, path, stream):
    """A collection stops all streams: with 20,000 objects in cycles for 20 ms."""
    said = {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"prompt": "a"}
    body = {**said, "max_tokens": 5, "stream": stream, "return_token_ids": True}
    app = pretend_app(tmp_path, PretendClient(ends_after=5))
    async with live(app) as (url, server), httpx.AsyncClient(timeout=60) as client:
        await client.post(url + path, json=body)
        with cyclic("quire", "uvicorn", "starlette") as left:
            for _ in range(3):
                assert (await client.post(url + path, json=body)).status_code == 200
            while server.server_state.tasks:
                await asyncio.sleep(0)
    assert not left
