"""Recordings, and requests to `/v1/audio/...` with them."""

import json

from audio_model import PLACE, noise, wav
from fake_client import http

SHORT = wav(noise(1.5))


LONG = wav(noise(5, quiet=[(1.2, 1.4), (2.7, 2.9)]))


CUTS = [1.3, 2.8]
"""Where it is quiet."""


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
