"""`/v1/files` through the `openai` client, and uploads that must be refused."""

import asyncio
import os
from pathlib import Path

import openai
import pytest
from batch_rig import running

from quire.server.http.forms import MAX_FIELDS


@pytest.fixture
async def client(tmp_path):
    async with running(tmp_path, max_file_bytes=100_000, max_total_bytes=250_000, max_files=8) as client:
        yield client


def contents(tmp_path):
    folder = tmp_path / "batches" / "contents"
    return sorted(os.listdir(folder)) if folder.exists() else []


async def test_a_file_is_uploaded_listed_read_and_deleted(client, tmp_path):
    made = await client.files.create(file=("notes.txt", b"some\x00bytes"), purpose="user_data")
    assert (made.object, made.bytes, made.filename, made.purpose) == ("file", 10, "notes.txt", "user_data")
    assert made.expires_at == made.created_at + 30 * 86_400
    assert await client.files.retrieve(made.id) == made
    assert [file.id async for file in client.files.list()] == [made.id]
    assert (await client.files.content(made.id)).content == b"some\x00bytes"
    assert contents(tmp_path) == [made.id]
    gone = await client.files.delete(made.id)
    assert (gone.id, gone.deleted, contents(tmp_path)) == (made.id, True, [])
    with pytest.raises(openai.NotFoundError):
        await client.files.content(made.id)


async def test_nothing_is_written_before_the_first_upload(client, tmp_path):
    assert [file async for file in client.files.list()] == [batch async for batch in client.batches.list()] == []
    for call in (client.files.retrieve, client.files.content, client.files.delete, client.batches.retrieve):
        with pytest.raises(openai.NotFoundError):
            await call("file-x")
    assert not (tmp_path / "batches").exists()


async def test_lists_have_pages_purposes_and_two_orders(client):
    purposes = ["batch", "vision"] * 3
    ids = [(await client.files.create(file=(f"{i}", b"x"), purpose=p)).id for i, p in enumerate(purposes)]
    assert [file.id async for file in client.files.list(limit=2, order="asc")] == ids
    assert [file.id async for file in client.files.list(limit=2)] == ids[::-1]
    assert [file.id async for file in client.files.list(purpose="vision", order="asc")] == ids[1::2]
    page = await client.files.list(limit=2, after=ids[1], order="asc")
    assert ([file.id for file in page.data], page.has_more) == (ids[2:4], True)
    assert (await client.files.list(after="unknown")).data == []
    for wrong in ({"limit": 0}, {"limit": 10_001}, {"order": "up"}):
        with pytest.raises(openai.BadRequestError):
            await client.files.list(**wrong)


async def test_a_file_expires_when_the_client_says(client, monkeypatch, tmp_path):
    lifetime = {"anchor": "created_at", "seconds": 3600}
    file = await client.files.create(file=("a", b"x"), purpose="batch", expires_after=lifetime)
    assert file.expires_at == file.created_at + 3600
    with pytest.raises(openai.BadRequestError, match="from 3600 to"):
        await client.files.create(file=("a", b"x"), purpose="batch", expires_after={**lifetime, "seconds": 60})
    with pytest.raises(openai.BadRequestError, match="created_at"):
        await client.files.create(file=("a", b"x"), purpose="batch", expires_after={**lifetime, "anchor": "now"})
    kept = await client.files.create(file=("b", b"x"), purpose="batch")
    monkeypatch.setattr("quire_batches.service.SWEEP_S", 0.01)
    later = file.created_at + 3601
    monkeypatch.setattr("time.time", lambda: later)
    async with running(tmp_path / "other"):  # time has passed for every service
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(file.id)
        assert (await client.files.retrieve(kept.id)).id == kept.id


async def test_expired_files_are_removed_at_the_start(tmp_path, monkeypatch):
    async with running(tmp_path) as client:
        file = await client.files.create(file=("a", b"x"), purpose="batch")
    monkeypatch.setattr("quire_batches.service.DAY_S", 0)  # kept for no time
    async with running(tmp_path) as client:
        new = await client.files.create(file=("a", b"x"), purpose="batch")
    monkeypatch.undo()
    async with running(tmp_path), asyncio.timeout(20):
        while contents(tmp_path) != [file.id]:
            await asyncio.sleep(0.005)
    assert new.expires_at == new.created_at


async def test_contents_that_were_never_stored_are_removed_at_the_start(tmp_path):
    async with running(tmp_path) as client:
        file = await client.files.create(file=("a", b"x"), purpose="batch")
    for name in ("file-orphan", "file-half.part"):
        (tmp_path / "batches" / "contents" / name).write_bytes(b"x")
    async with running(tmp_path) as client:
        assert contents(tmp_path) == [file.id]


@pytest.mark.parametrize(
    "name", ["../../../etc/passwd", "a\x00b", "x" * 300, "a/b\\c", 'q"\r\nX: y', "ümläut.jsonl", ""]
)
async def test_a_name_is_only_a_name(client, tmp_path, name):
    made = await client.files.create(file=(name or "none", b"x"), purpose="batch")
    assert len(made.filename) <= 255
    assert made.filename.isprintable()
    assert contents(tmp_path) == [made.id]
    response = await client.transport.get(f"/v1/files/{made.id}/content")
    assert "content-disposition" not in response.headers


@pytest.mark.parametrize(
    "file_id", ["..", "../state.db", "..%2Fstate.db", "%2e%2e/state.db", "' OR 1=1 --", "file-\x00"]
)
async def test_an_id_is_no_path(client, file_id):
    await client.files.create(file=("a", b"x"), purpose="batch")
    for path in (f"/v1/files/{file_id}/content", f"/v1/files/{file_id}"):
        response = await client.transport.get(path.replace("\x00", "%00"))
        assert response.status_code == 404
        assert b"SQLite" not in response.content


async def test_uploads_that_are_wrong_or_too_large_are_refused_and_leave_nothing(client, tmp_path):
    post = client.transport.post
    good = {"purpose": "batch"}
    for form in (
        {"data": good},
        {"data": good, "files": {"other": b"x"}},
        {"data": {"purpose": "other"}, "files": {"file": b"x"}},
        {"files": {"file": b"x"}},
        {"data": good, "files": [("file", b"x"), ("file2", b"x")]},
        {"data": {**good, **{f"f{i}": "x" for i in range(MAX_FIELDS)}}, "files": {"file": b"x"}},
        {"data": good, "files": {"file": b"x" * 100_001}},
        {"json": {"file": "x"}},
        {"content": b"--x\r\n", "headers": {"Content-Type": "multipart/form-data"}},
        {"content": b"garbage", "headers": {"Content-Type": "multipart/form-data; boundary=x"}},
    ):
        response = await post("/v1/files", **form)
        assert response.status_code == 400, (form, response.text)
        assert response.json()["error"]["message"]
    too_large = await post("/v1/files", data=good, files={"file": b"x" * 2_000_000})
    assert too_large.status_code == 413

    async def chunks():
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for _ in range(100):
            yield b"x" * 50_000

    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    assert (await post("/v1/files", content=chunks(), headers=headers)).status_code == 413
    assert contents(tmp_path) == []


async def test_all_files_together_have_a_bound(client, tmp_path):
    for _ in range(2):
        await client.files.create(file=("a", b"x" * 99_000), purpose="batch")
    with pytest.raises(openai.APIStatusError, match="of which 198000 are used") as found:
        await client.files.create(file=("a", b"x" * 60_000), purpose="batch")
    assert found.value.status_code == 413
    for _ in range(6):
        await client.files.create(file=("a", b"x"), purpose="batch")
    with pytest.raises(openai.APIStatusError, match="at most 8 files"):
        await client.files.create(file=("a", b"x"), purpose="batch")
    assert len(contents(tmp_path)) == 8


async def test_the_input_of_a_running_batch_cannot_be_deleted(tmp_path):
    from batch_rig import begin, ended, request
    from fake_client import PretendClient

    pretend = PretendClient(reply="Hello")
    pretend.hold = asyncio.Event()
    async with running(tmp_path, pretend) as client:
        batch = await begin(client, [request("a")])
        with pytest.raises(openai.BadRequestError, match="has not ended"):
            await client.files.delete(batch.input_file_id)
        pretend.hold.set()
        await ended(client, batch)
        await client.files.delete(batch.input_file_id)


def test_the_folder_is_readable_for_its_owner_alone(tmp_path):
    from quire_batches.folder import Folder

    folder = Folder(tmp_path / "a" / "b")
    folder.close()
    assert (tmp_path / "a" / "b" / "contents").stat().st_mode & 0o077 == 0
    assert Path(tmp_path / "a" / "b" / "lock").stat().st_mode & 0o077 == 0
