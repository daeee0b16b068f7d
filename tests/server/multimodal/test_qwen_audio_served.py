"""Audio from end to end: the `openai` client asks a tiny Qwen2-Audio through a real server."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import soundfile
from media_server import web_of_media
from qwen_audio_rig import Model, sound
from serving import serving

from quire.media.audio import Audio

MORE: dict[str, Any] = {
    "temperature": 0,
    "max_tokens": 12,
    "logprobs": True,
    "extra_body": {"ignore_eos": True, "return_tokens_as_token_ids": True},
}


def wav(audio: Audio) -> bytes:
    data = io.BytesIO()
    soundfile.write(data, audio.samples, audio.rate, format="WAV", subtype="FLOAT")
    return data.getvalue()


SOUND = sound(1, 0.6)
WAV = wav(SOUND)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def web() -> Iterator[Any]:
    with web_of_media() as made:
        made.files |= {"wav": WAV, "html": b"<!doctype html>"}
        yield made


@pytest.fixture(scope="module")
def client(model: Model) -> Iterator[openai.OpenAI]:
    flags = ["--allow-private-media-addresses", "--max-media-bytes", "400000", "--max-media-seconds", "3"]
    words = [model.folder, "--served-model-name", "tiny", "--plugins", "qwen-audio", "--dtype", "float32", *flags]
    env = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    with (
        serving(*words, "--device", "cpu", "--num-pages", "64", env=env) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as made,
    ):
        yield made


def inline(data: bytes) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"}}


def messages(*parts: dict[str, Any]) -> Any:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What?"}]}]


def said(client: openai.OpenAI, *parts: dict[str, Any]) -> list[int]:
    """The tokens of the answer: of random ones, the text tells little."""
    return tokens_of(client.chat.completions.create(model="tiny", messages=messages(*parts), **MORE))


def tokens_of(answer: Any) -> list[int]:
    return [int(entry.token.removeprefix("token_id:")) for entry in answer.choices[0].logprobs.content]


@pytest.fixture(scope="module")
def expected(model: Model) -> list[int]:
    """What transformers says of SOUND."""
    return model.greedy("<|user|><|audio_bos|><|AUDIO|><|audio_eos|>What?<|end|><|assistant|>", SOUND, count=12)


def test_audio_sent_along_is_heard_and_the_answer_streamed(client: openai.OpenAI, expected: list[int]) -> None:
    stream: Any = client.chat.completions.create(
        model="tiny",
        messages=messages(inline(WAV)),
        stream=True,
        stream_options={"include_usage": True},
        **MORE,
    )
    first, *chunks, last = stream
    assert first.choices[0].delta.role == "assistant"
    assert [token for chunk in chunks for token in tokens_of(chunk)] == expected
    assert last.usage.prompt_tokens == 15 + len("What?") + 5  # 0.6 s, text, and tokens around them


def test_audio_is_heard_wherever_it_comes_from(client: openai.OpenAI, web: Any, expected: list[int]) -> None:
    url = "data:audio/wav;base64," + base64.b64encode(WAV).decode()
    for link in (url, f"{web.url}/file/wav"):
        assert said(client, {"type": "audio_url", "audio_url": {"url": link}}) == expected
    assert said(client, inline(wav(sound(2, 0.6)))) != expected


def test_what_is_refused_is_an_error_of_the_client_and_the_server_goes_on(
    client: openai.OpenAI, web: Any, expected: list[int]
) -> None:
    for data, status, why in [
        (WAV[: len(WAV) // 2], 422, "cut short"),
        (b"", 422, "is empty"),
        (b"just some text", 422, "audio"),
        (b"<!doctype html><html></html>", 422, "cannot be read"),
        (wav(sound(1, 1.5)), 413, r"is 1\.5 seconds long; the model takes at most 1"),
        (wav(sound(1, 3.5, 16_000)), 413, "longer than 3 seconds"),
        (wav(sound(1, 0.01)), 422, "too short"),
    ]:
        with pytest.raises(openai.APIStatusError, match=why) as caught:
            said(client, inline(data))
        assert caught.value.status_code == status, why
    for link, status in [("file/html", 422), ("endless/", 413), ("404", 422)]:
        with pytest.raises(openai.APIStatusError) as caught:
            said(client, {"type": "audio_url", "audio_url": {"url": f"{web.url}/{link}"}})
        assert caught.value.status_code == status, link
    assert said(client, inline(WAV)) == expected
