"""`/v1/batches` through the `openai` client: from the file to the answers, and what ends a batch otherwise."""

import asyncio

import openai
import pytest
from batch_rig import answers, begin, ended, jsonl, request, running, upload
from fake_client import PretendClient, embedder, info

from quire.errors import EngineDied
from quire.types import in_background


@pytest.fixture
async def client(tmp_path):
    async with running(tmp_path) as client:
        yield client


async def test_a_batch_goes_from_its_file_to_its_answers(client):
    lines = [request(f"r{i}", max_tokens=1 + i % 4) for i in range(100)]
    lines.insert(5, request("wrong", temperature=-1))
    batch = await begin(client, lines, metadata={"a": "b"})
    assert (batch.status, batch.metadata, batch.object) == ("validating", {"a": "b"}, "batch")
    done = await ended(client, batch)
    assert (done.status, done.errors) == ("completed", None)
    counts = done.request_counts
    assert (counts.total, counts.completed, counts.failed) == (101, 100, 1)
    assert done.created_at <= done.in_progress_at <= done.finalizing_at <= done.completed_at <= done.expires_at
    good = await answers(client, done.output_file_id)
    assert list(good) == [line["custom_id"] for line in lines if line["custom_id"] != "wrong"], "in order"
    for i in range(100):
        response = good[f"r{i}"]["response"]
        assert response["status_code"] == 200
        assert response["body"]["usage"]["completion_tokens"] == 1 + i % 4
    bad = await answers(client, done.error_file_id)
    assert (list(bad), bad["wrong"]["response"]["status_code"]) == (["wrong"], 400)
    assert (await client.files.retrieve(done.output_file_id)).purpose == "batch_output"


async def test_its_requests_run_in_the_background(tmp_path):
    pretend = PretendClient(reply="Hello")
    async with running(tmp_path, pretend) as client:
        await ended(client, await begin(client, [request("a")]))
        await client.completions.create(model="tiny", prompt="hi", max_tokens=1)
    assert [in_background(request.client) for request in pretend.requests] == [True, False]


async def test_chats_and_embeddings_and_other_routes_are_answered(tmp_path):
    pretend = PretendClient(info(), embedder())
    bodies = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
        "/v1/embeddings": {"input": ["ab", "cd"]},
        "/tokenize": {"prompt": "hello"},
        "/v1/rerank": {"model": "embedder", "query": "a", "documents": ["b"]},
    }
    async with running(tmp_path, pretend) as client:
        for url, body in bodies.items():
            done = await ended(
                client, await begin(client, [{"custom_id": "a", "method": "POST", "url": url, "body": body}], url)
            )
            assert done.request_counts.completed == 1, url


async def test_what_is_wrong_with_a_file_is_said_with_line_numbers(client):
    lines = [
        request("a"),
        b"",
        b"no json",
        request("a"),
        request("b", url="/v1/chat/completions"),
        request("c", stream=True),
        {"custom_id": 7, "method": "POST", "url": "/v1/completions", "body": {}},
        {"custom_id": "d", "method": "GET", "url": "/v1/completions", "body": {}},
        {"custom_id": "e", "url": "/v1/completions", "body": []},
        [1],
        b"\xff\xfe",
        b'{"custom_id": ' + b"[" * 100_000,
    ]
    done = await ended(client, await begin(client, lines))
    assert (done.status, done.output_file_id, done.failed_at is not None) == ("failed", None, True)
    found = {error.line: (error.code, error.param) for error in done.errors.data}
    assert found == {
        3: ("invalid_json_line", None),
        4: ("duplicate_custom_id", "custom_id"),
        5: ("invalid_url", "url"),
        6: ("invalid_stream", "stream"),
        7: ("invalid_custom_id", "custom_id"),
        8: ("invalid_method", "method"),
        9: ("invalid_body", "body"),
        10: ("invalid_json_line", None),
        11: ("invalid_json_line", None),
        12: ("invalid_json_line", None),
    }


@pytest.mark.parametrize(("content", "code"), [(b"\n\n", "empty_file"), (jsonl(map(request, "abc")), "too_many_lines")])
async def test_a_file_without_requests_or_with_too_many_fails(tmp_path, content, code):
    async with running(tmp_path, max_lines=2) as client:
        done = await ended(client, await begin(client, content))
        assert [error.code for error in done.errors.data] == [code]


async def test_a_batch_that_cannot_be_is_refused(client):
    file = await upload(client, [request("a")])
    other = await upload(client, b"text", purpose="user_data")
    good = {"input_file_id": file.id, "endpoint": "/v1/completions", "completion_window": "24h"}
    for wrong in (
        {"endpoint": "/v1/responses"},
        {"endpoint": "/health"},
        {"endpoint": "/v1/batches"},
        {"input_file_id": other.id},
        {"completion_window": "soon"},
        {"completion_window": "0h"},
        {"metadata": {f"{i}": "" for i in range(17)}},
        {"metadata": {"a": "b" * 513}},
    ):
        with pytest.raises(openai.BadRequestError):
            await client.batches.create(**{**good, **wrong})
    for file_id in ("file-" + "0" * 32, "../state.db", "'; DROP TABLE files; --"):
        with pytest.raises(openai.NotFoundError):
            await client.batches.create(**{**good, "input_file_id": file_id})


async def test_a_cancelled_batch_keeps_the_answers_it_has(tmp_path):
    pretend = PretendClient(reply="Hello")
    async with running(tmp_path, pretend, concurrency=4) as client:
        batch = await begin(client, [request(f"r{i}", max_tokens=1 if i < 4 else 9) for i in range(50)])
        pretend.hold = asyncio.Event()
        await asyncio.wait_for(pretend.progress.wait(), 20)
        while (await client.batches.retrieve(batch.id)).request_counts.completed < 4:
            await asyncio.sleep(0.005)
        assert (await client.batches.cancel(batch.id)).status == "cancelling"
        done = await ended(client, batch)
        assert (done.status, done.request_counts.completed) == ("cancelled", 4)
        assert sorted(await answers(client, done.output_file_id)) == ["r0", "r1", "r2", "r3"]
        assert not pretend.running
        assert pretend.aborted
        with pytest.raises(openai.BadRequestError, match="cancelled"):
            await client.batches.cancel(batch.id)


async def test_requests_that_come_too_late_have_an_error_each(tmp_path):
    pretend = PretendClient(reply="Hello")
    pretend.hold = asyncio.Event()
    async with running(tmp_path, pretend, concurrency=2) as client:
        batch = await begin(client, [request(f"r{i}", max_tokens=1 + 8 * (i > 1)) for i in range(6)])
        await asyncio.wait_for(pretend.progress.wait(), 20)
        await asyncio.sleep(0)
    service = expire(tmp_path, batch.id)
    assert service.status == "in_progress"
    async with running(tmp_path) as client:
        done = await ended(client, batch)
        assert (done.status, done.expired_at is not None) == ("expired", True)
        bad = await answers(client, done.error_file_id)
        assert {line["error"]["code"] for line in bad.values()} == {"batch_expired"}
        assert len(await answers(client, done.output_file_id)) + len(bad) == 6
        assert done.request_counts.failed == len(bad) >= 4


def expire(folder, batch_id):
    """Let the time of a batch end while no server runs."""
    from contextlib import closing

    import msgspec

    from quire_batches.store import BatchStore

    with closing(BatchStore(folder / "batches" / "state.db")) as store:
        return store.update(batch_id, lambda batch: msgspec.structs.replace(batch, expires_at=0))


async def test_a_request_is_sent_again_when_the_engine_process_was_restarted(tmp_path, monkeypatch):
    monkeypatch.setattr("quire_batches.runner.RETRIES_S", (0.0, 0.0, 0.0))
    pretend = PretendClient(reply="Hello")
    tries = iter([EngineDied("gone")] * 2)
    generate = pretend.generate

    async def sometimes(model, request):
        pretend.failure = (0, error) if (error := next(tries, None)) else None
        async for deltas in generate(model, request):
            yield deltas

    pretend.generate = sometimes
    async with running(tmp_path, pretend, concurrency=1) as client:
        done = await ended(client, await begin(client, [request("a"), request("b")]))
        assert (done.request_counts.completed, done.request_counts.failed) == (2, 0)
        tries = iter([EngineDied("gone")] * 4)
        done = await ended(client, await begin(client, [request("a"), request("b")]))
        assert list(await answers(client, done.error_file_id)) == ["a"]
        assert list(await answers(client, done.output_file_id)) == ["b"]


async def test_a_batch_waits_for_models_that_are_not_served_any_more(tmp_path, monkeypatch):
    monkeypatch.setattr("quire_batches.runner.MODEL_WAIT_S", 0.01)
    pretend = PretendClient(reply="Hello")
    pretend.hold, pretend.held_at = asyncio.Event(), 0
    async with running(tmp_path, pretend) as client:
        batch = await begin(client, [request("a", model="tiny"), request("b", model="unknown")])
        await asyncio.wait_for(pretend.progress.wait(), 20)
    other = PretendClient(info("other"))
    async with running(tmp_path, other) as client:
        for _ in range(5):
            await asyncio.sleep(0.01)
        found = await client.batches.retrieve(batch.id)
        assert (found.status, other.requests) == ("in_progress", [])
        assert (await client.batches.cancel(batch.id)).status == "cancelling"
        await ended(client, batch)


async def test_answers_that_do_not_fit_end_the_batch(tmp_path):
    async with running(tmp_path, max_total_bytes=20_000, concurrency=2) as client:
        done = await ended(client, await begin(client, [request(f"r{i}", max_tokens=60) for i in range(100)]))
        assert (done.status, done.errors.data[0].code) == ("failed", "storage_full")
        assert 0 < len(await answers(client, done.output_file_id)) == done.request_counts.completed < 100


async def test_batches_are_listed_the_latest_first_and_in_pages(client):
    made = [await ended(client, await begin(client, [request("a")])) for _ in range(5)]
    ids = [batch.id for batch in reversed(made)]
    assert [batch.id async for batch in client.batches.list(limit=2)] == ids
    page = await client.batches.list(limit=2, after=ids[1])
    assert ([batch.id for batch in page.data], page.has_more) == (ids[2:4], True)
    with pytest.raises(openai.BadRequestError):
        await client.batches.list(limit=101)


async def test_clients_see_only_their_own_files_and_batches(tmp_path):
    async with running(tmp_path, keys=("one", "two"), key="one") as client:
        batch = await ended(client, await begin(client, [request("a")]))
        other = client.with_options(api_key="two")
        assert [item async for item in other.files.list()] == [item async for item in other.batches.list()] == []
        for call in (
            lambda: other.batches.retrieve(batch.id),
            lambda: other.batches.cancel(batch.id),
            lambda: other.files.content(batch.output_file_id),
            lambda: other.files.delete(batch.input_file_id),
            lambda: other.batches.create(
                input_file_id=batch.input_file_id, endpoint="/v1/completions", completion_window="24h"
            ),
        ):
            with pytest.raises(openai.NotFoundError):
                await call()
        assert len([item async for item in client.files.list()]) == 2


async def test_a_second_server_on_the_same_folder_says_so(tmp_path, client):
    await upload(client, [request("a")])
    async with running(tmp_path) as second:
        with pytest.raises(openai.InternalServerError, match="Another server uses the files") as found:
            await upload(second, [request("a")])
        assert found.value.status_code == 503


async def test_large_lines_take_more_places_and_all_are_answered(tmp_path, monkeypatch):
    monkeypatch.setattr("quire_batches.runner.BYTES_PER_SLOT", 200)
    async with running(tmp_path, concurrency=3) as client:
        lines = [
            request(f"{kind}{i}", user="x" * size)
            for i in range(5)
            for kind, size in (("s", 1), ("m", 300), ("l", 5000))
        ]
        batches = [await begin(client, lines) for _ in range(3)]
        assert [(await ended(client, batch)).request_counts.completed for batch in batches] == [15] * 3


async def test_only_so_many_batches_may_wait(tmp_path):
    pretend = PretendClient(reply="Hello")
    pretend.hold = asyncio.Event()
    async with running(tmp_path, pretend, max_batches=1) as client:
        await begin(client, [request("a")])
        with pytest.raises(openai.InternalServerError, match="1 batches have not ended"):
            await begin(client, [request("a")])


def test_the_openapi_document_has_the_routes():
    from batch_rig import ROUTER

    from quire_testing import check_router

    check_router(
        ROUTER, ["/v1/files", "/v1/batches", "/v1/files/x"], options={**defaults(), "folder": "/nowhere/at/all"}
    )


def defaults():
    from batch_rig import DEFAULTS

    return DEFAULTS
