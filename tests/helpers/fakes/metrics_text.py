"""Reads the text of `/metrics`."""

from fake_client import http, pretend_app
from prometheus_client.parser import text_string_to_metric_families


def families(text):
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(text):
    return {
        (
            sample.name.removeprefix("quire:"),
            *sorted(v for k, v in sample.labels.items() if k != "engine"),
        ): sample.value
        for family in families(text).values()
        for sample in family.samples
    }


async def settled(app):
    """Let what ended be counted, as the timer and the reporter would."""
    telemetry = app.state.service.telemetry
    telemetry.start()
    await telemetry.refresh()
    await telemetry.stop()


async def scrape(tmp_path, pretend, *bodies, registry=None):
    app = pretend_app(tmp_path, pretend, registry=registry)
    async with http(app) as client:
        for body in bodies:
            await client.post("/v1/completions", json=body)
        await settled(app)
        answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return answer.text
