"""Requests of every kind whose answers are known: greedy or seeded, so that the server must always give the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from bases import BASES, RECORDING
from demos import EXAMPLES, form, picture
from findings import chat, complete, tools
from wire import Answer

NEAR = 0.02
"""Numbers (log-probabilities, vectors) may differ by this beside other requests: matrix products of other shapes."""


@dataclass(frozen=True)
class Kind:
    """A request. status: of the right answer. weight: how often it is asked. cut_off: the client hangs up early."""

    name: str
    path: str
    body: bytes
    content_type: str = "application/json"
    status: int = 200
    weight: float = 1.0
    cut_off: bool = False


def made_of(kind: Kind, answer: Answer) -> Any:
    """What must be equal in two answers: texts, calls, vectors. An error in a stream is a text with `error: `."""
    if kind.status != 200:
        return answer.json()["error"]["type"]
    if answer.content_type.startswith("text/event-stream"):
        return _of_stream(answer.body)
    return _of(answer.json())


def _of(body: Any) -> Any:
    """An answer without ids, times and usage."""
    if isinstance(body, dict):
        left = ("id", "created", "usage", "system_fingerprint", "meta", "request_id", "kv_transfer_params")
        return {key: _of(value) for key, value in body.items() if key not in left}
    return [_of(item) for item in body] if isinstance(body, list) else body


def _of_stream(body: bytes) -> Any:
    texts: dict[int, str] = {}
    for line in body.split(b"\n"):
        if not line.startswith(b"data: ") or line == b"data: [DONE]":
            continue
        event = json.loads(line.removeprefix(b"data: "))
        if event.get("error"):
            return f"error: {event['error']['message']}"
        for choice in event.get("choices", ()):
            piece = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + piece
    return [texts[index] for index in sorted(texts)]


def same(kind: Kind, found: Any, right: Any) -> bool:
    """Whether two answers are equal, numbers nearly so."""
    if isinstance(found, float | int) and isinstance(right, float | int) and not isinstance(found, bool):
        return abs(found - right) <= NEAR * max(1.0, abs(right))
    if isinstance(found, dict) and isinstance(right, dict):
        return found.keys() == right.keys() and all(same(kind, found[key], right[key]) for key in found)
    if isinstance(found, list) and isinstance(right, list):
        return len(found) == len(right) and all(map(same, [kind] * len(found), found, right))
    return bool(found == right)


def has_error(answer: Answer) -> bool:
    """Whether a failure says why."""
    try:
        return len(answer.json()["error"]["message"]) > 10
    except (ValueError, KeyError, TypeError):
        return False


def _json(name: str, path: str, body: dict[str, Any], **more: Any) -> Kind:
    return Kind(name, path, json.dumps(body).encode(), **more)


def _kinds() -> list[Kind]:
    chats, completions = "/v1/chat/completions", "/v1/completions"
    greedy: dict[str, Any] = {"temperature": 0, "max_tokens": 24}
    hello, tale = "Hello! Who are you?", "Once upon a time"
    look = [{"type": "image_url", "image_url": {"url": picture(64, 64)}}, {"type": "text", "text": "What is this?"}]
    shape = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    speech, speech_kind = form(RECORDING, model="demo-whisper", language="en", temperature="0")
    long = complete(tale, max_tokens=400, ignore_eos=True, stream=True)
    return [
        _json("chat", chats, chat(hello, **greedy), weight=4),
        _json("chat, streamed", chats, chat(hello, stream=True, **greedy), weight=4),
        _json("completion", completions, complete(tale, **greedy), weight=3),
        _json("long completion", completions, complete(tale, temperature=0, max_tokens=200, ignore_eos=True)),
        _json("long prompt", completions, complete([20 + n % 900 for n in range(800)], **greedy)),
        _json("n 4, seeded", completions, complete(tale, n=4, seed=11, temperature=1, max_tokens=16)),
        _json("seeded, streamed", completions, complete(tale, seed=5, temperature=1, max_tokens=32, stream=True)),
        _json("token ids", completions, complete(tale, return_token_ids=True, **greedy)),
        _json("adapter", completions, complete("Hello", model="demo-pirate", **greedy), weight=3),
        _json("adapter, another", chats, chat(hello, model="demo-dutch", **greedy), weight=2),
        _json("adapters, two", completions, complete(tale, **_two(), **greedy)),
        _json("choice", completions, complete(tale, structured_outputs={"choice": ["yes", "no"]}, **greedy)),
        _json("regex", completions, complete(tale, structured_outputs={"regex": "[a-c]{3}x"}, **greedy)),
        _json("schema", chats, chat(hello, structured_outputs={"json": shape}, **greedy)),
        _json("tools", chats, chat("Do a thing.", model="demo-tools", tools=tools(2), **greedy)),
        _json("a call demanded", chats, _demanded(), weight=1),
        _json("picture", chats, chat(look, model="demo-llava", **greedy), weight=2),
        Kind("speech", "/v1/audio/transcriptions", speech, speech_kind),
        _json("embeddings", "/v1/embeddings", BASES["/v1/embeddings"], weight=2),
        _json("rerank", "/rerank", BASES["/rerank"], weight=2),
        _json("tokenize", "/tokenize", BASES["/tokenize"]),
        _json("generate", "/generate", {**BASES["/generate"], "sampling_params": dict(greedy)}),
        _json("no such model", completions, complete(tale, model="no-such-model"), status=404),
        _json("bad field", chats, chat(hello, n=-4), status=400),
        _json("too long", completions, complete([20] * 2000), status=400),
        _json("hung up on", completions, long, cut_off=True, weight=3),
        _json("hung up on, a chat", chats, chat(hello, stream=True, max_tokens=300, ignore_eos=True), cut_off=True),
    ]


def _two() -> dict[str, Any]:
    return {"adapters": [{"name": "demo-pirate", "weight": 0.5}, {"name": "demo-dutch", "weight": 0.5}]}


def _demanded() -> dict[str, Any]:
    call = {"tools": tools(1), "tool_choice": "required", "temperature": 0, "max_tokens": 120}
    return {**chat("What is the weather?", model="demo-tools"), **call}


assert EXAMPLES.exists()
KINDS = tuple(_kinds())
