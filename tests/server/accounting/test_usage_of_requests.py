"""What requests used, as `GET /v1/usage` shows it, with an engine that is pretended."""

import asyncio
import csv
import io
import sqlite3
import threading

import httpx
import pytest
from fake_client import PretendClient, embedder, http, pretend_app
from live_server import live
from metrics_text import values

from quire.cli import main
from quire.errors import EngineDied
from quire.hooks.call_stats import PluginCallStats
from quire.hooks.calls import NotifyHook
from quire.records import Registry
from quire.server.accounting import ledger
from quire.settings.server_config import ServerConfig

KEYS = {"api_key": ("one", "two"), "admin_api_key": ("root",)}


@pytest.fixture
def app(tmp_path):
    """Builds an application that stores usage; closes what it stores in the end."""
    made = []

    def build(client=None, registry=None, **settings):
        config = ServerConfig(usage_db=str(tmp_path / "usage.sqlite"), **settings)
        made.append(pretend_app(tmp_path, client or PretendClient(), config, registry))
        return made[-1]

    yield build
    for one in made:
        one.state.service.accounting.ledger.close(10)


def stored(folder):
    """Every row by id: (outcome, input, cached, output)."""
    connection = sqlite3.connect(folder / "usage.sqlite")
    rows = connection.execute("SELECT id, outcome, input_tokens, cached_tokens, output_tokens FROM usage").fetchall()
    connection.close()
    return {row[0]: row[1:] for row in rows}


def as_(key):
    return {"headers": {"Authorization": f"Bearer {key}"}}


async def totals(client, query="", **more):
    answer = await client.get(f"/v1/usage?bucket_width=all{query}", **more)
    assert answer.status_code == 200, answer.text
    return [result for bucket in answer.json()["data"] for result in bucket["results"]]


async def test_the_accounts_have_an_answer_before_its_client_has_it(app, tmp_path):
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    async with http(app()) as client:
        answer = (await client.post("/v1/chat/completions", json=body, headers={"X-Request-Id": "mine"})).json()
        rows = stored(tmp_path)
        assert {tuple(row) for row in rows.values()} == {("finished", answer["usage"]["prompt_tokens"], 3, 5)}
        assert all(id.startswith("chatcmpl-mine-0-") for id in rows)
        streamed = await client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 4, "stream": True})
        assert streamed.text.endswith("[DONE]\n\n")
        (found,) = [row for id, row in stored(tmp_path).items() if id.startswith("cmpl-")]
    assert found == ("finished", 3, 3, 4)


async def test_tokens_after_a_stop_word_and_tokens_not_shown_are_no_output(app, tmp_path):
    async with http(app(PretendClient(per_step=8))) as client:
        stopped = await client.post("/v1/completions", json={"prompt": "a", "stop": "llo", "max_tokens": 16})
        await client.post("/v1/completions", json={"prompt": "a", "echo": True, "max_tokens": 0})
    outputs = sorted(row[-1] for row in stored(tmp_path).values())
    assert outputs == [0, stopped.json()["usage"]["completion_tokens"]]


async def test_aborted_and_failed_requests_are_accounted_for(app, tmp_path):
    engine = PretendClient()
    engine.hold, engine.held_at = asyncio.Event(), 3
    async with http(app(engine)) as client:
        waiting = asyncio.create_task(client.post("/v1/completions", json={"prompt": "abcd", "max_tokens": 9}))
        await engine.progress.wait()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        engine.hold, engine.failure = None, (2, EngineDied("The process ended."))
        assert (await client.post("/v1/completions", json={"prompt": "ab"})).status_code == 503
        engine.failure = (0, EngineDied("The process ended."))
        assert (await client.post("/v1/completions", json={"prompt": "ab"})).status_code == 503
        engine.failure = None
        await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})  # is written after those before it
    assert sorted(stored(tmp_path).values()) == [
        ("aborted", 4, 3, 3),
        ("failed", 0, 0, 0),
        ("failed", 2, 3, 2),
        ("finished", 1, 3, 1),
    ]


async def test_a_tenant_sees_its_own_usage_and_an_administrator_that_of_all(app):
    async with http(app(**KEYS)) as client:
        for key, count in (("one", 1), ("two", 2), ("two", 3)):
            await client.post("/v1/completions", json={"prompt": "a", "max_tokens": count}, **as_(key))
        mine = await totals(client, **as_("one"))
        every = await totals(client, "&group_by=tenant,model", **as_("root"))
        other = next(row["tenant"] for row in every if row["output_tokens"] == 5)
        assert [row["output_tokens"] for row in mine] == [1]
        assert sorted((row["model"], row["num_model_requests"]) for row in every) == [("tiny", 1), ("tiny", 2)]
        assert all(row["tenant"].startswith("key:") and len(row["tenant"]) == 16 for row in every)
        assert (await totals(client, f"&tenant={other}", **as_("root")))[0]["num_model_requests"] == 2
        assert (await client.get(f"/v1/usage?tenant={other}", **as_("one"))).status_code == 403
        assert (await client.get("/v1/audit", **as_("one"))).status_code == 403
        assert (await client.get("/v1/usage")).status_code == 401


async def test_usage_by_bucket_as_pages_and_as_csv(app):
    async with http(app(PretendClient(embedder()))) as client:
        for _ in range(2):
            await client.post("/v1/embeddings", json={"input": ["ab", "c"]})
        page = (await client.get("/v1/usage?group_by=endpoint&group_by=model&bucket_width=1h")).json()
        (bucket,) = page["data"]
        (result,) = bucket["results"]
        assert bucket["end_time"] - bucket["start_time"] == 3600
        assert (result["endpoint"], result["num_model_requests"], result["input_tokens"]) == ("/v1/embeddings", 4, 6)
        table = await client.get("/v1/usage?format=csv&group_by=outcome&bucket_width=all")
        assert table.headers["content-type"].startswith("text/csv")
        (line,) = csv.DictReader(io.StringIO(table.text))
        assert (line["outcome"], line["num_model_requests"], line["input_tokens"]) == ("finished", "4", "6")
        assert (await client.get("/v1/usage?to=2001-01-01")).json()["data"] == []
        for wrong in ("group_by=user", "from=soon", "limit=0", "bucket_width=2d", "format=xml", "teant=a"):
            refused = await client.get(f"/v1/usage?{wrong}")
            assert refused.status_code == 400, refused.text
            assert wrong.partition("=")[0] in refused.json()["error"]["message"]


async def test_pages_of_usage_have_every_row_once(app):
    async with http(app(**KEYS)) as client:
        for key in ("one", "two", "root"):
            await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}, **as_(key))
        seen, page = [], ""
        while page is not None:
            query = f"/v1/usage?group_by=tenant&limit=1&bucket_width=all&page={page or 0}"
            body = (await client.get(query, **as_("root"))).json()
            seen += [result["tenant"] for bucket in body["data"] for result in bucket["results"]]
            page = body["next_page"]
    assert len(seen) == len(set(seen)) == 3


async def test_metrics_count_tokens_of_a_bounded_number_of_tenants_and_show_no_address(app):
    built = app(**KEYS, metrics_max_tenants=1)
    async with http(built) as client:
        for key in ("one", "two", "root"):
            await client.post("/v1/completions", json={"prompt": "ab", "max_tokens": 2}, **as_(key))
        text = (await client.get("/metrics")).text
    lines = [
        line for line in text.splitlines() if line.startswith("quire:usage_tokens_total") and 'kind="output"' in line
    ]
    assert len(lines) == 2
    assert sum(float(line.split()[-1]) for line in lines) == 6
    assert any('tenant="other"' in line for line in lines)
    assert values(text)["request_success_total", "length", "tiny"] == 3
    async with http(app()) as client:
        await client.post("/v1/completions", json={"prompt": "ab"})
        assert 'tenant="no key"' in (await client.get("/metrics")).text


async def test_a_locked_database_keeps_no_answer_waiting_and_loses_nothing(app, tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "MAX_WAIT_S", 0.05)
    built = app()
    async with http(built) as client:
        lock = sqlite3.connect(tmp_path / "usage.sqlite", isolation_level=None)
        lock.execute("BEGIN EXCLUSIVE")
        for _ in range(5):
            assert (await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})).status_code == 200
        assert stored_now(lock) == 0
        lock.execute("ROLLBACK")
        lock.close()
    await asyncio.to_thread(built.state.service.accounting.ledger.close, 30)
    assert len(stored(tmp_path)) == 5


def stored_now(connection):
    return connection.execute("SELECT count(*) FROM usage").fetchone()[0]


@pytest.mark.parametrize("stores", [True, False])
async def test_plugins_get_records_that_are_stored_and_cannot_hurt(app, tmp_path, stores, caplog):
    heard, arrived = [], threading.Event()

    def bill(records, options):
        heard.extend((record.output_tokens, record.endpoint, options["unit"]) for record in records)
        arrived.set()
        raise RuntimeError("the bill is lost")

    hook = NotifyHook("quire_usage_recorded", "records", (("bill", bill),), PluginCallStats(), {"bill": {"unit": "ct"}})
    registry = Registry(usage_recorded=hook)
    built = app(registry=registry) if stores else pretend_app(tmp_path, registry=registry)
    async with http(built) as client:
        for count in (2, 3):
            arrived.clear()
            await client.post("/v1/completions", json={"prompt": "a", "max_tokens": count})
            assert await asyncio.to_thread(arrived.wait, 30)
    await built.state.service.telemetry.stop()
    assert heard == [(2, "/v1/completions", "ct"), (3, "/v1/completions", "ct")]
    assert "the bill is lost" in caplog.text


async def test_a_server_that_stores_nothing_says_so(tmp_path):
    async with http(pretend_app(tmp_path)) as client:
        for path in ("/v1/usage", "/v1/audit"):
            answer = await client.get(path)
            assert answer.status_code == 404
            assert "--usage-db" in answer.json()["error"]["message"]


async def test_the_command_prints_usage_as_a_table_and_as_csv(app, capsys):
    async with live(app()) as (url, _):
        async with httpx.AsyncClient(base_url=url) as client:
            await client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 4})
        ask = ["usage", "--url", url, "--by", "model,outcome"]
        assert await asyncio.to_thread(main, ask) == 0
        header, line = capsys.readouterr().out.splitlines()
        assert header.split()[:4] == ["model", "outcome", "num_model_requests", "input_tokens"]
        assert line.split()[:6] == ["tiny", "finished", "1", "3", "3", "4"]
        assert await asyncio.to_thread(main, [*ask, "--csv", "--per", "1d"]) == 0
        assert "tiny,finished,1,3" in capsys.readouterr().out
        assert await asyncio.to_thread(main, ["usage", "--url", url, "--by", "user"]) != 0
        assert "group_by" in capsys.readouterr().err
