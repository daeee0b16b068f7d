"""Exporters and events of plugins, also those that fail or hang."""

import asyncio
import threading

from fake_client import PretendClient, http, pretend_app
from metrics_text import scrape, values

from quire.records import MetricsExporter, Registry


async def test_exporters_and_events_of_plugins_hear_and_may_fail(tmp_path, caplog):
    heard = []

    class Exporter:
        def observe(self, stats):
            heard.append(stats.model)
            raise RuntimeError("no network")

    def finished(summary):
        heard.append(summary.finish_reason)
        raise RuntimeError("broken")

    record = MetricsExporter(name="x", build=lambda context: Exporter())
    registry = Registry(records={"quire_metrics_exporters": {"x": record}}, request_finished=finished)
    text = await scrape(tmp_path, PretendClient(), {"prompt": "a"}, {"prompt": "b"}, registry=registry)
    assert heard.count("length") == 2
    assert "tiny" in heard
    assert "no network" in caplog.text
    assert values(text)["request_success_total", "length", "tiny"] == 2


async def test_a_server_that_ends_waits_until_plugins_have_heard_of_every_request(tmp_path):
    hearing, go_on, heard = threading.Event(), threading.Event(), []

    def finished(summary):
        hearing.set()
        assert go_on.wait(60)
        heard.append(summary.finish_reason)

    app = pretend_app(tmp_path, registry=Registry(request_finished=finished))
    telemetry = app.state.service.telemetry
    telemetry.start()
    async with http(app) as client:
        await client.post("/v1/completions", json={"prompt": "a"})
        await asyncio.to_thread(hearing.wait, 60)
        await client.post("/v1/completions", json={"prompt": "b"})
    ending = asyncio.create_task(telemetry.stop())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not ending.done()
    go_on.set()
    await ending
    assert heard == ["length", "length"]


async def test_a_plugin_that_hangs_misses_events_and_keeps_neither_metrics_nor_the_end_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr("quire.server.metrics.telemetry.WAITING_EVENTS", 2)
    monkeypatch.setattr("quire.server.metrics.telemetry.DRAIN_S", 0.0)
    go_on = threading.Event()
    app = pretend_app(tmp_path, registry=Registry(request_finished=lambda summary: go_on.wait(60)))
    telemetry = app.state.service.telemetry
    async with http(app) as client:
        for _ in range(6):
            await client.post("/v1/completions", json={"prompt": "a"})
            found = values((await client.get("/metrics")).text)
        await telemetry.refresh()
        rows = telemetry.plugin_calls()
    await telemetry.stop()
    go_on.set()
    assert found["request_success_total", "length", "tiny"] == 6
    assert rows[0]["dropped"] >= 3


async def test_a_report_that_has_just_ended_does_not_stop_the_event_loop(tmp_path, monkeypatch):
    """Who came between the end of a report and the next turn of the loop waited for what was done, without a turn."""
    app, end = pretend_app(tmp_path), asyncio.Event()
    telemetry = app.state.service.telemetry
    monkeypatch.setattr(asyncio, "to_thread", lambda *_: end.wait())
    telemetry.finished(None, None)
    telling = asyncio.create_task(telemetry.report_finished())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    end.set()
    await asyncio.sleep(0)  # now the report is done, and its callbacks are still to be called
    await telemetry.report_finished()
    await telling


async def test_the_timer_reads_statistics_while_the_application_lives(tmp_path):
    pretend = PretendClient()
    asked = asyncio.Event()
    stats = pretend.stats

    async def counted():
        asked.set()
        return await stats()

    pretend.stats = counted
    app = pretend_app(tmp_path, pretend)
    async with app.router.lifespan_context(app):
        await asyncio.wait_for(asked.wait(), 60)
