"""The database of responses: limits, clients apart, files of other processes, and cuts."""

import os
import subprocess
import sys

import openai
import pytest

from quire.errors import ConfigError, TooLarge
from quire_apis.responses.storage import database as database_module, retention
from quire_apis.responses.storage.database import CUT, INPUT, Database
from quire_apis.responses.storage.retention import Limits

WIDE = Limits(count=100, num_bytes=1 << 20, age_s=1000)


def response(id, status="completed", previous=None, text=""):
    return {"id": id, "status": status, "previous_response_id": previous, "text": text, "output": []}


def item(id):
    return {"id": id, "type": "message", "role": "user", "content": []}


@pytest.fixture
def open_database(tmp_path):
    opened = []

    def make(limits=WIDE, path=None):
        opened.append(Database(str(path or tmp_path / "kept.sqlite"), limits))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def kept(database, *ids, owner="a"):
    return [id for id in ids if database.get(owner, "response", id) is not None]


def test_the_number_is_bounded_and_the_least_recently_used_go_first(open_database):
    database = open_database(Limits(count=3, num_bytes=1 << 20, age_s=1000))
    for id in "wxy":
        database.add("a", "response", response(id), [item(f"m{id}")])
    assert database.chain("a", "w") == [("completed", [item("mw")])]
    database.add("a", "response", response("z"), [])
    assert kept(database, *"wxyz") == ["w", "y", "z"]
    assert database.page("x", None, 10, False).items == []


def test_the_bytes_are_bounded_and_too_large_a_response_displaces_no_other(open_database):
    database = open_database(Limits(count=100, num_bytes=1000, age_s=1000))
    for id in "xy":
        database.add("a", "response", response(id, text="t" * 300), [])
    database.finish("a", response("y", text="t" * 600), None)
    assert kept(database, *"xy") == ["y"]
    database.add("a", "response", response("z", text="t" * 2000), [])
    assert kept(database, *"xyz") == ["y"]


def test_the_client_that_has_the_most_gives_way(open_database):
    database = open_database(Limits(count=4, num_bytes=1 << 20, age_s=1000))
    database.add("b", "response", response("old"), [])
    for number in range(9):
        database.add("a", "response", response(f"{number}"), [])
    assert kept(database, "old", owner="b") == ["old"]
    assert kept(database, *map(str, range(9))) == ["6", "7", "8"]


def test_what_was_not_used_for_long_is_gone(open_database, monkeypatch):
    database = open_database()
    now = 1000.0
    monkeypatch.setattr(retention.time, "time", lambda: now)
    database.add("a", "response", response("x"), [item("m")])
    now += 900
    database.add("a", "response", response("y", previous="x"), [])
    assert database.item("a", "m") == item("m")
    database.chain("a", "y")
    now += 900
    assert kept(database, *"xy") == ["x", "y"]
    now += 200
    assert kept(database, *"xy") == []
    assert (database.item("a", "m"), database.chain("a", "y")) == (None, None)
    database.add("a", "response", response("z"), [])
    assert database.page("x", None, 10, False).items == []


def test_a_response_in_progress_is_not_displaced(open_database):
    database = open_database(Limits(count=1, num_bytes=1 << 20, age_s=1000))
    database.add("a", "response", response("x", status="in_progress"), [])
    database.add("a", "response", response("y"), [])
    assert kept(database, *"xy") == ["x", "y"]
    database.finish("a", response("x"), b"events")
    assert kept(database, *"xy") == ["x"]
    assert database.events("a", "x") == b"events"


def test_the_end_of_a_deleted_response_is_not_kept(open_database):
    database = open_database()
    database.add("a", "response", response("x", status="in_progress"), [])
    assert database.delete("a", "response", "x")
    database.finish("a", response("x"), None)
    assert kept(database, "x") == []


def test_clients_see_only_their_own(open_database):
    database = open_database()
    database.add("a", "response", response("x"), [item("m")])
    database.add("a", "conversation", {"id": "c"}, [item("n")])
    assert database.get("b", "response", "x") is database.chain("b", "x") is database.item("b", "m") is None
    assert database.conversation("b", "c") is database.update("b", "conversation", "c", {}) is None
    assert not database.append("b", "c", [item("o")])
    assert not database.delete_item("b", "c", "n")
    assert not database.delete("b", "response", "x")
    assert database.get("a", "conversation", "x") is None
    assert database.conversation("a", "c") == [item("n")]


def test_what_is_continued_is_bounded_before_it_is_read(open_database, monkeypatch):
    monkeypatch.setattr(database_module, "MAX_CONTEXT_ITEMS", 4)
    database = open_database()
    database.add("a", "conversation", {"id": "c"}, [item("m"), item("n")])
    database.add("a", "response", response("x"), [item("m"), item("n")])
    database.add("a", "response", response("y", previous="x"), [])
    database.add("a", "response", response("z", previous="y"), [])
    assert len(database.chain("a", "y")) == 2
    with pytest.raises(TooLarge, match="begin anew"):
        database.chain("a", "z")
    monkeypatch.setattr(database_module, "MAX_CONTEXT_BYTES", 100)
    with pytest.raises(TooLarge):
        database.conversation("a", "c")


def test_a_failed_transaction_changes_nothing(open_database):
    database = open_database()
    database.add("a", "response", response("x"), [])
    with pytest.raises(TypeError):
        database.add("a", "response", response("y"), [{"id": "m", "value": object()}])
    with pytest.raises(Exception, match="UNIQUE"):
        database.add("a", "response", response("x"), [item("m")])
    assert database.page("x", None, 9, False).items == []
    assert kept(database, *"xy") == ["x"]


def test_a_process_that_was_killed_leaves_failed_responses(open_database, tmp_path):
    code = (
        "import os, sys; from quire_apis.responses.storage.database import Database;"
        "from quire_apis.responses.storage.retention import Limits;"
        "database = Database(sys.argv[1], Limits(count=9, num_bytes=9999, age_s=9999));"
        "value = {'id': 'x', 'status': 'in_progress', 'previous_response_id': None, 'output': []};"
        "database.add('a', 'response', value, [{'id': 'm'}]); os._exit(9)"
    )
    path = tmp_path / "kept.sqlite"
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 9
    database = open_database(path=path)
    found = database.get("a", "response", "x")
    assert (found["status"], found["error"]["message"]) == ("failed", CUT)
    assert database._items("x", INPUT) == [{"id": "m"}]


def test_a_file_is_private_and_of_one_process_and_must_be_a_database(open_database, tmp_path):
    path = tmp_path / "new folder" / "kept.sqlite"
    open_database(path=path)
    assert os.stat(path).st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="locked"):
        open_database(path=path)
    (tmp_path / "text").write_text("no database" * 100)
    with pytest.raises(ConfigError, match="not a database"):
        open_database(path=tmp_path / "text")


async def test_each_api_key_has_responses_and_conversations_of_its_own(new_rig):
    rig = new_rig(settings={"api_key": ("ann", "bob")})
    rig.says("Hello.")
    async with rig.openai("ann") as ann, rig.openai("bob") as bob:
        made = await ann.responses.create(model="tiny", input="Hi", background=True)
        conversation = await ann.conversations.create()
        for ask in (bob.responses.retrieve, bob.responses.cancel, bob.responses.delete, bob.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                await ask(made.id)
        with pytest.raises(openai.NotFoundError):
            await bob.conversations.retrieve(conversation.id)
        with pytest.raises(openai.NotFoundError):
            await bob.responses.create(input="Hi", conversation=conversation.id)
        assert (await ann.responses.retrieve(made.id)).id == made.id


async def test_a_server_that_stores_nothing_answers_all_the_same(new_rig):
    rig = new_rig({"max-stored": 0})
    rig.says("Hello.")
    async with rig.openai() as client:
        made = await client.responses.create(model="tiny", input="Hi")
        assert (made.output_text, made.to_dict()["store"]) == ("Hello.", False)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)
        with pytest.raises(openai.BadRequestError):
            await client.responses.create(input="Hi", previous_response_id=made.id)
        with pytest.raises(openai.InternalServerError, match="max-stored"):
            await client.conversations.create()
