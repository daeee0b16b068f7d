"""A process that streams answers of one model and notes the time between two tokens.

Gets its task as JSON on stdin, writes what it found as JSON to stdout. It imports little, to be quick and small.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from itertools import pairwise
from typing import Any

from connection import request_bytes

TOKENS = 400
EVENT = b"data: {"
TEXT = re.compile(rb'"text": ?"(\w*)"')


def stream(port: int, model: str, letter: str) -> tuple[list[float], str]:
    """Times between the tokens of one stream in seconds, and what is wrong with it; "" = nothing."""
    body = {"model": model, "prompt": "x", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
    times: list[float] = []
    received = b""
    seen = 0
    with socket.create_connection(("127.0.0.1", port), timeout=300) as link:
        link.sendall(request_bytes("POST", "/v1/completions", body))
        while b"data: [DONE]" not in received[-64:] and (data := link.recv(65536)):
            now = time.monotonic()
            received += data
            count = received.count(EVENT, max(0, seen - len(EVENT)))
            times += [now] * count
            seen = max(received.rfind(EVENT) + len(EVENT) + 1, seen)
    gaps = [later - before for before, later in pairwise(times)]
    text = b"".join(TEXT.findall(received)).decode()
    if b"data: [DONE]" not in received:
        return gaps, f"a stream of {model} was lost after {len(text)} tokens: {received[:200]!r}"
    return gaps, "" if text == letter * TOKENS else f"{model} streamed {text[:80]!r}… instead of {TOKENS} {letter!r}"


def run(task: dict[str, Any]) -> dict[str, Any]:
    gaps: list[float] = []
    problems: list[str] = []
    until = time.monotonic() + task["seconds"]
    while time.monotonic() < until and len(problems) < 10:
        found, problem = stream(task["port"], task["model"], task["letter"])
        gaps += found
        problems += [problem] if problem else []
    return {"gaps_s": gaps, "problems": problems}


if __name__ == "__main__":
    print(json.dumps(run(json.load(sys.stdin))))
