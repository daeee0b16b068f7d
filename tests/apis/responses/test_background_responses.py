"""Responses in the background, and cuts: whatever ends a response, what is stored of it is consistent."""

import asyncio
import json
import sqlite3
import threading

import openai
import pytest
from response_events import Machine, checked, parsed

from quire.errors import EngineDied
from quire_apis.responses.storage.database import CUT, Database

ASK = {"model": "tiny", "input": "Hi", "background": True}


async def held(rig):
    """Hold the model after some tokens of the answer."""
    rig.says("Hello there.")
    rig.script.held_at, rig.script.hold = 18, asyncio.Event()
    rig.script.progress = asyncio.Event()


async def status_of(client, id):
    while (found := await client.responses.retrieve(id)).status in ("queued", "in_progress"):
        await asyncio.sleep(0)
    return found


async def test_a_background_response_is_made_while_its_client_is_away(rig):
    await held(rig)
    async with rig.openai() as client:
        made = await client.responses.create(**ASK)
        assert (made.status, made.output) == ("queued", [])
        await rig.script.progress.wait()
        assert (await client.responses.retrieve(made.id)).status == "in_progress"
        with pytest.raises(openai.BadRequestError, match="not complete"):
            await client.responses.create(input="x", previous_response_id=made.id)
        rig.script.hold.set()
        done = await status_of(client, made.id)
        assert (done.status, done.output_text) == ("completed", "Hello there.")
        assert (await client.responses.cancel(made.id)).status == "completed"


async def test_its_stream_begins_anywhere_and_is_kept(rig):
    await held(rig)
    async with rig.http() as client:
        id = (await client.post("/v1/responses", json=ASK)).json()["id"]
        await rig.script.progress.wait()
        first = asyncio.create_task(client.get(f"/v1/responses/{id}", params={"stream": True}))
        again = asyncio.create_task(client.get(f"/v1/responses/{id}", params={"stream": True, "starting_after": 2}))
        await asyncio.sleep(0)
        rig.script.hold.set()
        whole = checked((await first).text, background=True)
        assert parsed((await again).text) == whole[3:]
        for after in (-1, 0, len(whole) - 2, len(whole), 10**9):
            kept = await client.get(f"/v1/responses/{id}", params={"stream": True, "starting_after": after})
            assert parsed(kept.text) == whole[after + 1 :]
        stored = (await client.get(f"/v1/responses/{id}")).json()
        assert stored == whole[-1]["response"]
        plain = (await client.post("/v1/responses", json={"input": "Hi"})).json()
        refused = await client.get(f"/v1/responses/{plain['id']}", params={"stream": True})
        assert refused.status_code == 400


async def test_a_background_response_is_cancelled_or_deleted_while_it_is_made(rig):
    await held(rig)
    async with rig.openai() as client:
        made = await client.responses.create(**ASK)
        await rig.script.progress.wait()
        stopped = await client.responses.cancel(made.id)
        assert (stopped.status, stopped.output[0].status) == ("cancelled", "incomplete")
        assert "Hello there.".startswith(stopped.output_text)
        assert await client.responses.retrieve(made.id) == stopped
        assert not rig.script.running
        early = await client.responses.create(**ASK)  # cancelled before its first step
        assert (await client.responses.cancel(early.id)).status == "cancelled"
        other = await client.responses.create(**ASK)
        await client.responses.delete(other.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(other.id)
        assert not rig.script.running


async def test_a_background_response_that_fails_says_why(rig):
    rig.says("Hello there.")
    async with rig.openai() as client:
        for tokens in (0, 18):
            rig.script.failure = (tokens, EngineDied("gone"))
            failed = await status_of(client, (await client.responses.create(**ASK)).id)
            assert (failed.status, failed.error.message) == ("failed", "gone")
        rig.script.failure = None
        with pytest.raises(openai.BadRequestError, match="store"):
            await client.responses.create(**ASK, store=False)


async def left(rig, body, leaves):
    """The events of a stream until its client disconnects: when `leaves` is true for the bytes so far."""
    sent = [{"type": "http.request", "body": json.dumps({**body, "stream": True}).encode(), "more_body": False}]
    gone, data = asyncio.Event(), []

    async def receive():
        if sent:
            return sent.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        data.append(message.get("body", b""))
        if leaves(b"".join(data)):
            gone.set()

    scope = {"type": "http", "method": "POST", "path": "/v1/responses", "query_string": b"", "http_version": "1.1"}
    scope |= {"headers": [(b"content-type", b"application/json")], "client": ("127.0.0.1", 1), "server": None}
    await rig.app(scope, receive, send)
    events = parsed(b"".join(data).decode())
    machine = Machine(body["background"])
    for event in events:
        machine.take(event)
    return events


@pytest.mark.parametrize("background", [False, True])
async def test_a_stream_that_its_client_leaves_is_cancelled_unless_it_is_in_the_background(rig, background):
    await held(rig)
    events = await left(rig, {**ASK, "background": background}, lambda data: b"output_text.delta" in data)
    rig.script.hold.set()
    async with rig.openai() as client:
        found = await status_of(client, events[0]["response"]["id"])
    assert found.status == ("completed" if background else "cancelled")
    assert found.output[0].status == ("completed" if background else "incomplete")
    assert "Hello there.".startswith(found.output_text)
    assert not rig.script.running


@pytest.mark.parametrize("background", [False, True])
async def test_a_stream_that_is_cut_after_any_event_leaves_a_consistent_response(rig, tool_call, background):
    rig.says(f"<think>Hm.</think>I add.{tool_call('add', a=1)}")
    tool = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
    body = {**ASK, "background": background, "tools": [tool]}
    async with rig.openai() as client, rig.http() as http:
        whole = checked((await http.post("/v1/responses", json={**body, "stream": True})).text, background)
        for number in range(1, len(whole) + 1):
            events = await left(rig, body, lambda data, number=number: data.count(b"\n\n") >= number)
            found = await status_of(client, events[0]["response"]["id"])
            kinds = [item.type for item in found.output]
            assert kinds == ["reasoning", "message", "function_call"][: len(kinds)]
            done = [event["item"]["id"] for event in events if event["type"] == "response.output_item.done"]
            assert [item.id for item in found.output][: len(done)] == done
            assert found.status in ("completed", "completed" if background else "cancelled")
            if found.status == "completed":
                assert (len(kinds), found.output_text) == (3, "I add.")
            assert {item.status for item in found.output[:-1]} <= {"completed", "incomplete"}
            assert not rig.script.running


@pytest.mark.parametrize("background", [False, True])
async def test_a_request_that_ends_while_its_response_is_stored_leaves_it_cancelled(rig, monkeypatch, background):
    begun, may_end, ids = threading.Event(), threading.Event(), []
    add = Database.add

    def slow(self, owner, kind, value, items):
        ids.append(value["id"])
        begun.set()
        may_end.wait()
        add(self, owner, kind, value, items)

    monkeypatch.setattr(Database, "add", slow)
    rig.says("Hello there.")
    async with rig.openai() as client:
        asking = asyncio.create_task(client.responses.create(**{**ASK, "background": background}))
        await asyncio.to_thread(begun.wait)
        asking.cancel()
        may_end.set()
        await asyncio.gather(asking, return_exceptions=True)
        assert (await status_of(client, ids[0])).status == "cancelled"
    assert not rig.script.running


async def test_a_database_that_cannot_be_written_is_an_error_of_the_server(rig, monkeypatch):
    def broken(*_):
        raise sqlite3.OperationalError("disk full")

    rig.says("Hello there.")
    async with rig.openai() as client:
        with monkeypatch.context() as patch:
            patch.setattr(Database, "finish", broken)
            assert (await client.responses.create(model="tiny", input="Hi")).output_text == "Hello there."
            patch.setattr(Database, "add", broken)
            for background in (True, False):
                with pytest.raises(openai.InternalServerError, match="disk full"):
                    await client.responses.create(**{**ASK, "background": background})
    assert not rig.script.running


async def test_a_server_that_stops_leaves_no_response_in_progress(new_rig, tmp_path):
    path = str(tmp_path / "kept" / "responses.sqlite")
    rig = new_rig({"path": path})
    await held(rig)
    async with rig.openai() as client, rig.app.router.lifespan_context(rig.app):
        made = await client.responses.create(**ASK)
        await rig.script.progress.wait()
        done = await client.responses.create(model="tiny", input="Hi", max_output_tokens=1)
    assert not rig.script.running
    again = new_rig({"path": path})
    again.says("Bye.")
    async with again.openai() as client, again.app.router.lifespan_context(again.app):
        found = await client.responses.retrieve(made.id)
        assert (found.status, found.error.message) == ("failed", CUT)
        assert await client.responses.retrieve(done.id) == done
        next = await client.responses.create(model="tiny", input="So?", previous_response_id=done.id)
        assert next.output_text == "Bye."
