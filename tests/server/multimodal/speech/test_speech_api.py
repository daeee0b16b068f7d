"""`/v1/audio/…` without a model: what reaches the engine, the shapes of answers, and errors."""

import math
import zlib
from dataclasses import replace

import pytest
from audio_model import NUM_PARTS
from fake_client import http, info
from speech_forms import CUTS, LONG, events_of, post, prompts_of

from quire.records import LogitsProcessor, RequestGate, RequestRefused
from quire.settings.server_config import ServerConfig
from quire.types.adapter_info import AdapterInfo


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


async def test_a_missing_language_is_detected_in_one_step(app_of):
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


async def test_a_stream_reports_usage_as_requested(app_of):
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
                return RequestRefused("not today", 429)
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


async def test_the_accounts_have_the_bytes_and_seconds_of_a_recording_once(app_of, tmp_path):
    app, client = app_of(ServerConfig(usage_db=str(tmp_path / "usage.sqlite")))
    await post(app, LONG, response_format="verbose_json")  # the language is detected, too
    async with http(app) as asking:
        answer = (await asking.get("/v1/usage?bucket_width=all&group_by=endpoint")).json()
    app.state.service.accounting.ledger.close(10)
    (result,) = answer["data"][0]["results"]
    assert result["endpoint"] == "/v1/audio/transcriptions"
    assert result["num_model_requests"] == len(client.requests)
    assert (result["media_bytes"], round(result["audio_seconds"], 2)) == (len(LONG), 5.0)
