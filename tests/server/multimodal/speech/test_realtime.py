"""`/v1/realtime` without a model: the official client, the three dialects, and what is refused."""

import asyncio
import json

import openai
import pytest
from live_server import live
from realtime_rig import COMMIT, append, base64_of, check_events, pcm, quiet, realtime, session
from speech_forms import prompts_of

from quire.records import RequestGate, RequestRefused

PREFIX = "conversation.item.input_audio_transcription"
DONE = f"{PREFIX}.completed"


async def test_the_official_client_gets_deltas_and_the_whole_text(app_of):
    app, fake = app_of()
    async with live(app) as (url, _):
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
        async with client.realtime.connect(extra_query={"intent": "transcription"}) as connection:
            heard = {"transcription": {"model": "tiny", "language": "de", "prompt": "Ah. "}, "turn_detection": None}
            await connection.session.update(session=session(format={"type": "audio/pcm", "rate": 24000}, **heard))
            audio = pcm(1.5)
            for begin in range(0, len(audio), 4801):  # also within a sample
                await connection.input_audio_buffer.append(audio=base64_of(audio[begin : begin + 4801]))
            await connection.input_audio_buffer.commit()
            events = []
            async for event in connection:
                events.append(event)
                if event.type == DONE:
                    break
    kinds = [event.type for event in events]
    assert kinds[:5] == [
        "session.created",
        "session.updated",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
    ]
    deltas = [event.delta for event in events if event.type == f"{PREFIX}.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == events[-1].transcript == "Hello, world!"
    assert {event.item_id for event in events[5:]} == {events[2].item_id}
    assert events[-1].usage.seconds == pytest.approx(1.5)
    check_events([json.loads(event.to_json(warnings=False)) for event in events[1:]])
    assert prompts_of(fake) == ["Ah. ####dew"]


async def test_turns_follow_each_other_and_a_long_one_is_cut_into_windows(app_of):
    app, fake = app_of()
    async with live(app) as (url, _), realtime(url, "?model=tiny") as client:
        await client.send(append(pcm(1)), {"type": "input_audio_buffer.clear"}, append(pcm(0.5)), COMMIT)
        await client.send(append(pcm(5)), COMMIT)
        first = await client.until(DONE)
        second = await client.until(DONE)
    assert first[0]["type"] == "input_audio_buffer.cleared"
    assert [one["usage"]["seconds"] for one in (first[-1], second[-1])] == [0.5, 5.0]
    committed = [one for one in (*first, *second) if one["type"] == "input_audio_buffer.committed"]
    assert [one["previous_item_id"] for one in committed] == [None, committed[0]["item_id"]]
    assert second[-1]["transcript"] == "Hello, world! Hello, world! Hello, world!"
    check_events([*first, *second])
    assert len(fake.requests) == 2 + 4  # the language is detected in each turn


async def test_an_older_session_has_its_own_shape_and_events(app_of):
    app, _ = app_of()
    old = {"input_audio_format": "pcm16", "input_audio_transcription": {"model": "tiny", "language": "en"}}
    async with live(app) as (url, _), realtime(url, "?intent=transcription") as client:
        await client.send({"type": "transcription_session.update", "session": old}, append(pcm(1)), COMMIT)
        updated, committed, created, *rest = await client.until(DONE)
    assert updated["type"] == "transcription_session.updated"
    assert updated["session"]["input_audio_transcription"]["model"] == "tiny"
    assert created["type"] == "conversation.item.created"
    assert created["item"]["id"] == committed["item_id"] == rest[-1]["item_id"]


async def test_clients_of_vllm_commit_before_the_audio_and_get_its_events(app_of):
    app, fake = app_of()
    async with live(app) as (url, _), realtime(url) as client:
        await client.send({"type": "session.update", "model": "tiny"}, COMMIT)
        await client.send(append(pcm(1, 16_000)), COMMIT, append(pcm(0.5, 16_000)), {**COMMIT, "final": True})
        events = await client.until("transcription.done")
        await client.send(append(pcm(0.5, 16_000)), {**COMMIT, "final": True})
        (again,) = [one for one in await client.until("transcription.done") if one["type"] == "transcription.done"]
        await client.send({"type": "session.update", "model": "no"}, "{")
        errors = [await client.next(), await client.next()]
    *deltas, done = events
    assert {one["type"] for one in deltas} == {"transcription.delta"}
    assert "".join(one["delta"] for one in deltas) == done["text"] == "Hello, world! Hello, world!"
    assert again["text"] == "Hello, world!"
    assert done["usage"]["total_tokens"] == done["usage"]["prompt_tokens"] + done["usage"]["completion_tokens"] > 0
    assert [one["code"] for one in errors] == ["model_not_found", "invalid_json"]
    assert all(isinstance(one["error"], str) for one in errors)
    parts = fake.requests[1].prompt.media[0].tensors["parts"]
    assert parts[:, 1].sum().item() == pytest.approx(1)  # at 16,000 samples a second


@pytest.mark.parametrize(
    ("name", "audio"), [("audio/pcmu", bytes([0xFF, 0x00, 0x80])), ("audio/pcma", b"\xd5\x2a\xaa")]
)
async def test_telephone_audio_has_a_byte_a_sample(app_of, name, audio):
    app, _ = app_of()
    async with live(app) as (url, _), realtime(url) as client:
        await client.send({"type": "session.update", "session": session(format={"type": name})})
        assert (await client.next())["session"]["audio"]["input"]["format"] == {"type": name}
        await client.send(append(audio * 8000), COMMIT)
        assert (await client.until(DONE))[-1]["usage"]["seconds"] == 3.0


async def test_a_session_without_transcription_only_commits(app_of):
    app, fake = app_of()
    async with live(app) as (url, _), realtime(url) as client:
        await client.send({"type": "session.update", "session": session(transcription=None)}, append(pcm(1)), COMMIT)
        await client.until("conversation.item.done")
        await client.send({"type": "session.update", "session": session(transcription={})}, append(pcm(1)), COMMIT)
        assert (await client.until(DONE))[-1]["transcript"]
    assert len(fake.requests) == 2


def update(**fields):
    return {"type": "session.update", "session": {"type": "transcription", **fields}}


WRONG = [
    ("{", "invalid_json"),
    ("[1]", "invalid_event"),
    ('{"a": 1}', "invalid_event"),
    ('{"type": "a", "b": ' + "[" * 3000 + "]" * 3000 + "}", "invalid_json"),
    ('{"type": "a", "b": [' + "1," * 5000 + "1]}", "invalid_event"),
    (b"\x00\x01", "invalid_event"),
    ('{"type": "input_audio_buffer.clear", "event_id": "' + "x" * 513 + '"}', "invalid_event"),
    ({"type": "response.create"}, "unknown_event"),
    ({"type": "input_audio_buffer.append"}, "invalid_event"),
    ({"type": "input_audio_buffer.append", "audio": "no base64!"}, "invalid_audio"),
    ({"type": "input_audio_buffer.append", "audio": "AAA="[:-1]}, "invalid_audio"),
    ({"type": "input_audio_buffer.append", "audio": ("A" * 100 + "====") * 4000}, "invalid_audio"),
    ({"type": "input_audio_buffer.append", "audio": 7}, "invalid_event"),
    (COMMIT, "input_audio_buffer_commit_empty"),
    ({"type": "session.update"}, "invalid_event"),
    ({"type": "session.update", "session": 7}, "invalid_value"),
    ({"type": "session.update", "session": {"type": "realtime", "voice": "alloy"}}, "unsupported"),
    (update(**session(turn_detection={"type": "server_vad"})), "unsupported"),
    (update(**session(noise_reduction={"type": "near_field"})), "unsupported"),
    (update(include=["item.input_audio_transcription.logprobs"]), "unsupported"),
    (update(**session(transcription={"model": "tiny", "languages": ["en"]})), "unsupported"),
    (update(**session(transcription={"model": "nothing"})), "model_not_found"),
    (update(**session(transcription={"prompt": "x" * 20_001})), "invalid_value"),
    (update(**session(format={"type": "audio/pcm", "rate": 7})), "invalid_value"),
    (update(**session(format={"type": "audio/ogg"})), "invalid_value"),
    (update(**session(unknown=1)), "invalid_value"),
    ({"type": "transcription_session.update", "session": {"input_audio_format": "mp3"}}, "invalid_value"),
    ({"type": "transcription_session.update", "session": {"turn_detection": {}}}, "unsupported"),
]


async def test_what_is_wrong_gets_an_error_event_and_the_session_goes_on(app_of):
    app, fake = app_of()
    async with live(app) as (url, _), realtime(url) as client:
        for event, code in WRONG:
            named = {**event, "event_id": "mine"} if isinstance(event, dict) else event
            await client.send(named)
            raw = await client.next()
            check_events([raw])
            error = raw["error"]
            assert (error["code"], error["type"]) == (code, "invalid_request_error"), (event, raw)
            assert error["message"]
            assert error["event_id"] in ("mine", None)
        assert not fake.requests
        await client.send(append(pcm(0.5)), COMMIT)
        assert (await client.until(DONE))[-1]["transcript"] == "Hello, world!"


async def test_a_turn_that_cannot_be_transcribed_fails_alone(app_of):
    class Gate:
        def admit(self, request):
            seen.append((request.route, request.model, dict(request.body)))
            return RequestRefused("Not today.", 429) if request.body.get("prompt") else request

    seen = []
    app, _ = app_of(records={"quire_request_gates": {"g": RequestGate("g", lambda context: Gate())}})
    async with live(app) as (url, _), realtime(url) as client:
        for wrong in ({"model": "deaf"}, {"model": "tiny", "language": "tlh"}, {"language": "en", "prompt": "x"}):
            await client.send(update(**session(transcription=wrong)), append(pcm(0.5)), COMMIT)
            event = (await client.until(f"{PREFIX}.failed", "error"))[-1]
            check_events([event])
            assert event["error"]["message"]
        assert event["error"] == {
            "type": "invalid_request_error",
            "code": "invalid_request",
            "message": "Not today.",
            "param": None,
        }
        await client.send(update(**session(transcription={"prompt": ""})), append(pcm(0.5)), COMMIT)
        assert (await client.until(DONE))[-1]["transcript"] == "Hello, world!"
    assert seen[0] == ("/v1/realtime", "deaf", {"model": "deaf"})
    assert seen[-1] == ("/v1/realtime", "tiny", {"model": "tiny", "language": "en"})


async def test_a_client_that_goes_away_aborts_its_turn(app_of):
    app, fake = app_of()
    fake.hold = asyncio.Event()
    async with live(app, quiet(shutdown_timeout_s=5)) as (url, _):
        async with realtime(url) as client:
            await client.send(update(**session(transcription={"language": "en"})), append(pcm(0.5)), COMMIT)
            await client.until(f"{PREFIX}.delta")
            await fake.progress.wait()
        async with asyncio.timeout(5):
            while not fake.aborted:
                await asyncio.sleep(0.01)
    assert fake.aborted == [fake.requests[0].id]
