"""Wrong forms are refused, and requests end when their client is gone."""

import asyncio

import pytest
from fake_client import http
from speech_forms import LONG, SHORT, events_of, post

from quire.media.limits import MediaLimits
from quire.settings.server_config import ServerConfig

WRONG = [
    ({"model": "absent"}, 404, "model", "does not exist"),
    ({"model": "deaf"}, 400, "model", "cannot do `transcribe`. It can do: generate"),
    ({"file": None}, 400, "file", "`file` is needed"),
    ({"file": b""}, 422, "file", "it has no bytes"),
    ({"file": b"RIFF, or so"}, 422, "file", "cannot be read"),
    ({"file": SHORT[:40]}, 422, "file", "audio"),
    ({"language": "klingon"}, 400, "language", "it must be one of en, de, zh"),
    ({"to_language": "de"}, 400, "to_language", "/v1/audio/translations only"),
    ({"response_format": "xml"}, 400, "body.response_format", "'json', 'text', 'verbose_json', 'srt' or 'vtt'"),
    ({"timestamp_granularities[]": "segment"}, 400, "timestamp_granularities", "verbose_json"),
    (
        {"timestamp_granularities[]": ["segment", "word"], "response_format": "verbose_json"},
        400,
        "timestamp_granularities",
        "can only be segment; got 'word'",
    ),
    ({"stream": "true", "response_format": "srt"}, 400, "stream", "json and text, not srt"),
    ({"stream_include_usage": "true"}, 400, "stream_include_usage", "only allowed when `stream`"),
    ({"temperature": "3"}, 400, "temperature", "from 0 to 2"),
    ({"seed": str(2**63)}, 400, "body.seed", "less than or equal to 9223372036854775807"),
    ({"temperature": "hot"}, 400, "body.temperature", "valid number"),
    ({"max_completion_tokens": "0"}, 400, "body.max_completion_tokens", "greater than or equal to 1"),
    ({"max_completion_tokens": "999"}, 400, "max_tokens", "maximum context length is 128"),
    ({"prompt": "x" * 200}, 400, "prompt", "maximum context length is 128"),
    ({"hotwords": "Quire"}, 400, "hotwords", "not supported"),
    ({"include[]": "logprobs"}, 400, "include", "not supported"),
    ({"adapters": "style"}, 400, "body.adapters", "JSON"),
    ({"request_id": "x" * 2000}, 400, "request_id", "characters"),
]


@pytest.mark.parametrize(("fields", "status", "param", "message"), WRONG)
async def test_what_is_wrong_is_said_and_nothing_runs(app_of, fields, status, param, message):
    app, client = app_of()
    answer = await post(app, **{"language": "en", **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, status, param), answer.text
    assert message in error["message"]
    assert not client.requests


async def test_what_is_no_form_is_refused(app_of):
    app, _ = app_of()
    head, body = {"content-type": "multipart/form-data; boundary=x"}, b'--x\r\nContent-Disposition: form-data; name="a"'
    async with http(app) as client:
        for headers, content, message in (
            ({"content-type": "application/json"}, b"{}", "multipart/form-data"),
            ({"content-type": "multipart/form-data"}, b"", "boundary"),
            (head, b"no boundary", "not a valid form"),
            (head, b"--x\r\n\r\n\r\n--x--", "name"),
            (head, body, "`file` is needed"),
            (
                head,
                b"".join(b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n' for _ in range(200)),
                "fields",
            ),
        ):
            answer = await client.post("/v1/audio/transcriptions", content=content, headers=headers)
            assert answer.status_code == 400, answer.text
            assert message in answer.json()["error"]["message"]


async def test_bounds_of_the_server_and_of_the_model_hold(app_of):
    app, _ = app_of(ServerConfig(max_body_bytes=1000))
    assert (await post(app)).status_code == 413
    for limits, setting in ((MediaLimits(max_bytes=1000), "max-media-bytes"), (MediaLimits(max_s=1), "max-media-sec")):
        app, _ = app_of(limits=limits)
        answer = await post(app)
        assert answer.status_code == 413
        assert setting in answer.json()["error"]["message"]


async def test_a_form_without_a_model_means_the_first_that_transcribes(app_of):
    app, client = app_of()
    assert (await post(app, model="", language="en")).status_code == 200
    assert len(client.requests) == 1


async def test_requests_end_when_their_client_is_gone(app_of):
    app, client = app_of(ends_after=None)
    client.hold = asyncio.Event()
    asking = asyncio.create_task(post(app, LONG, language="en"))
    await client.progress.wait()
    assert len(client.running) == 4
    assert len(app.state.service.inflight) == 1
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert len(client.aborted) == 4
    assert not client.running
    assert len(app.state.service.inflight) == 0


async def test_an_error_in_the_middle_of_a_stream_is_its_last_event(app_of):
    from quire.errors import EngineDied

    app, client = app_of()
    client.failure = (3, EngineDied("gone"))
    *_, last = events_of(await post(app, language="en", stream="true"))
    assert last["error"]["message"] == "gone"
