"""`/v1/audio/…` without a model: what reaches the engine, the shapes of answers, and how errors are told."""

import asyncio
import json
import math
import zlib
from dataclasses import replace

import pytest
from hearing_rig import ARCHITECTURE, NUM_PARTS, PLACE, PLUGIN, noise, wav
from plugin_site import installed
from pretend_client import PretendClient, http, info, served

from quire import registry
from quire.adapter_info import AdapterInfo
from quire.media.intake import Intake
from quire.media.limits import MediaLimits
from quire.records import LogitsProcessor, Refused, RequestGate
from quire.server.app import build_app
from quire.server_config import ServerConfig
from quire.text.media import MediaInputs
from quire.text.speech import Speech
from quire.text.tokenizer import Tokenizer

HEARS = {
    "architecture": ARCHITECTURE,
    "modalities": ("audio",),
    "tasks": ("generate", "transcribe", "translate"),
}
SHORT = wav(noise(1.5))
LONG = wav(noise(5, quiet=[(1.2, 1.4), (2.7, 2.9)]))
CUTS = [1.3, 2.8]
"""Where it is quiet."""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    with installed(tmp_path_factory.mktemp("plugins") / "site", "ears", PLUGIN):
        yield registry.load(["llama", "ears"])


@pytest.fixture
def app_of(found, tmp_path):
    """An application with one model that hears and one that does not, and the client that pretends to run them."""
    intakes = []

    def app_of(config=None, records=None, limits=None, **client):
        client = PretendClient(info(**HEARS), info("deaf"), **{"ends_after": 13, **client})
        hears, deaf = served(tmp_path, client.infos)
        intakes.append(Intake(limits or MediaLimits()))
        loaded = replace(found, records={**found.records, **(records or {})})
        media = MediaInputs(loaded, hears.info, Tokenizer.load(tmp_path), intakes[-1])
        speech = Speech.of(loaded, hears.info, hears.tokenizer, media)
        models = [replace(hears, media=media, speech=speech), deaf]
        return build_app(client, config or ServerConfig(), loaded, models), client

    yield app_of
    for intake in intakes:
        intake.close()


async def post(app, file=SHORT, path="transcriptions", **fields):
    async with http(app) as client:
        files = {} if file is None else {"file": ("a.wav", file)}
        data = {"model": "tiny", **fields}
        if not files:  # httpx sends a form with boundaries only where there is a file
            files = {"other": ("b", b"")}
        return await client.post(f"/v1/audio/{path}", data=data, files=files)


def prompts_of(client):
    return ["".join("#" if i == PLACE else chr(i) for i in one.prompt.token_ids) for one in client.requests]


def events_of(answer):
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_a_recording_becomes_a_prompt_and_its_answer_the_text(app_of):
    app, client = app_of()
    answer = await post(app, language="de", prompt="Ah. ")
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"text": "Hello, world!", "usage": {"type": "duration", "seconds": 2}}
    (request,) = client.requests
    assert prompts_of(client) == ["Ah. " + "#" * NUM_PARTS + "dew"]
    assert request.id.startswith("transcribe-")
    params = request.params
    assert (params.temperature, params.max_tokens) == (0, info().max_model_len - len(request.prompt.token_ids))
    assert (params.logit_bias, params.extra) == ({0: -100.0}, {"letters": True})


async def test_translations_ask_for_another_task(app_of):
    app, client = app_of()
    answer = await post(app, path="translations", language="german", response_format="verbose_json")
    assert (answer.json()["task"], answer.json()["language"]) == ("translate", "english")
    assert prompts_of(client)[0].endswith("det0")
    answer = await post(app, path="translations", language="zh", to_language="de")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "language")


async def test_a_language_that_nobody_said_is_found_by_one_step(app_of):
    app, client = app_of()
    answer = await post(app, LONG, response_format="verbose_json")
    assert answer.json()["language"] == "english"
    first = client.requests[0]
    assert prompts_of(client)[0] == "#" * NUM_PARTS + "?"
    assert (first.params.allowed_token_ids, first.params.max_tokens) == ((ord("H"), ord("d")), 1)
    assert all(prompt.endswith("enw0") for prompt in prompts_of(client)[1:4])


async def test_fields_of_sampling_reach_the_engine(app_of):
    app, client = app_of()
    asked = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 3, "max_completion_tokens": 5}
    asked |= {"frequency_penalty": 0.1, "presence_penalty": 0.2, "repetition_penalty": 1.1}
    assert (await post(app, language="en", **asked)).json()["text"] == "Hello"
    params = client.requests[0].params
    for name, value in asked.items():
        assert getattr(params, {"max_completion_tokens": "max_tokens"}.get(name, name)) == value


async def test_a_long_recording_is_cut_where_it_is_quiet_and_heard_at_once(app_of):
    app, client = app_of()
    answer = await post(app, LONG, language="en")
    assert answer.json() == {"text": " ".join(["Hello, world!"] * 4), "usage": {"type": "duration", "seconds": 5}}
    assert len(client.requests) == 4
    lengths = [request.prompt.media[0].tensors["parts"][:, 1].sum().item() for request in client.requests]
    assert lengths[:2] == pytest.approx([CUTS[0], CUTS[1] - CUTS[0]], abs=0.06)
    assert sum(lengths) == pytest.approx(5)


async def test_verbose_json_says_when_how_surely_and_how_repetitively(app_of):
    app, client = app_of()
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": "segment", "temperature": 0.25}
    answer = (await post(app, LONG, language="en", **fields)).json()
    text = " ".join(["Hello, world!"] * 4)
    assert answer["text"] == text
    assert (answer["task"], answer["language"], answer["duration"]) == ("transcribe", "english", 5)
    assert answer["usage"] == {"type": "duration", "seconds": 5}
    segments = answer["segments"]
    assert [segment["id"] for segment in segments] == list(range(16))
    first, fifth = segments[0], segments[4]
    assert (first["seek"], first["start"], first["end"], first["text"]) == (0, 0, 0.5, "Hell")
    assert first["tokens"] == list(b"Hell")
    assert first["avg_logprob"] == -0.5
    assert first["no_speech_prob"] == pytest.approx(math.exp(-0.5))
    assert first["temperature"] == 0.25
    assert first["compression_ratio"] == 4 / len(zlib.compress(b"Hell"))
    assert fifth["start"] == pytest.approx(CUTS[0], abs=0.06)
    assert fifth["seek"] == round(fifth["start"] * 100)
    assert segments[3]["end"] <= fifth["start"]
    assert segments[-1]["end"] == 5
    silent = client.requests[4:]
    assert [request.params.allowed_token_ids for request in silent] == [(ord("."),)] * 4


async def test_plain_texts_and_subtitles(app_of):
    app, _ = app_of(ends_after=5)
    answers = [await post(app, language="en", response_format=form) for form in ("text", "srt", "vtt")]
    assert {answer.headers["content-type"] for answer in answers} == {"text/plain; charset=utf-8"}
    text, srt, vtt = (answer.text for answer in answers)
    assert text == "Hello\n"
    assert srt == "1\n00:00:00,000 --> 00:00:00,500\nHell\n\n2\n00:00:00,500 --> 00:00:01,500\no\n"
    assert vtt == "WEBVTT\n\n00:00:00.000 --> 00:00:00.500\nHell\n\n00:00:00.500 --> 00:00:01.500\no\n"


async def test_a_stream_says_the_same_piece_by_piece_in_order(app_of):
    app, client = app_of()
    whole = (await post(app, LONG)).json()["text"]
    client.requests.clear()
    *deltas, done = events_of(await post(app, LONG, stream="true"))
    assert {delta["type"] for delta in deltas} == {"transcript.text.delta"}
    assert "".join(delta["delta"] for delta in deltas) == whole
    assert (done["type"], done["text"]) == ("transcript.text.done", whole)
    prompts = [len(request.prompt.token_ids) for request in client.requests[1:]]
    assert done["usage"] == {
        "type": "tokens",
        "input_tokens": sum(prompts),
        "input_token_details": {"audio_tokens": 4 * NUM_PARTS, "text_tokens": sum(prompts) - 4 * NUM_PARTS},
        "output_tokens": 4 * 14,
        "total_tokens": sum(prompts) + 4 * 14,
    }


async def test_a_stream_counts_as_it_is_told_to(app_of):
    app, _ = app_of()
    *deltas, done = events_of(await post(app, stream="true", stream_include_usage="false"))
    assert not any("usage" in event for event in (*deltas, done))
    *deltas, done = events_of(await post(app, stream="true", stream_continuous_usage_stats="true"))
    counts = [event["usage"]["output_tokens"] for event in (*deltas, done)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


async def test_a_gate_sees_the_fields_and_may_change_them(app_of):
    seen = []

    class Gate:
        def admit(self, request):
            seen.append((request.route, request.model, dict(request.body)))
            if request.body.get("language") == "zh":
                return Refused("not today", 429)
            return replace(request, body={**request.body, "language": "de"})

    records = {"quire_request_gates": {"g": RequestGate("g", lambda context: Gate())}}
    app, client = app_of(records=records)
    assert (await post(app, language="en")).status_code == 200
    assert seen == [("/v1/audio/transcriptions", "tiny", {"model": "tiny", "language": "en"})]
    assert prompts_of(client)[0].endswith("dew")
    assert (await post(app, language="zh")).status_code == 429


async def test_fields_of_plugins_get_their_types(app_of):
    records = {"quire_logits_processors": {"p": LogitsProcessor("p", {"strength": int, "tone": str}, None)}}
    app, client = app_of(records=records)
    assert (await post(app, language="en", strength="5", tone="7", unheard="of")).status_code == 200
    assert client.requests[0].params.extra == {"letters": True, "strength": 5, "tone": "7"}
    assert (await post(app, language="en", vllm_xargs='{"strength": 6}')).status_code == 200
    assert client.requests[1].params.extra == {"letters": True, "strength": 6}
    answer = await post(app, language="en", strength="much")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "strength")


async def test_fields_that_mean_something_elsewhere_mean_nothing_here(app_of):
    app, client = app_of()
    assert (await post(app, language="en", n="3", stop="w", use_beam_search="maybe")).json()["text"] == "Hello, world!"
    assert client.requests[0].params.n == 1


async def test_an_adapter_is_named_as_a_model_is_or_in_json(app_of):
    app, client = app_of()
    client.adapters.infos["style"] = AdapterInfo(name="style", model="tiny", path="/x", state="ready")
    assert (await post(app, model="style")).status_code == 200
    assert (await post(app, language="en", adapters='[{"name": "style", "weight": 0.5}]')).status_code == 200
    uses = [[(use.ref.name, use.weight) for use in request.adapters] for request in client.requests]
    assert uses == [[("style", 1)], [("style", 1)], [("style", 0.5)]]


WRONG = [
    ({"model": "nobody"}, 404, "model", "does not exist"),
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


async def test_what_nobody_waits_for_is_ended(app_of):
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
    from quire.errors import HostDied

    app, client = app_of()
    client.failure = (3, HostDied("gone"))
    *_, last = events_of(await post(app, language="en", stream="true"))
    assert last["error"]["message"] == "gone"
