"""Requests made of good ones by a few random changes: seeded, mostly small, with few tokens to generate."""

from __future__ import annotations

import base64
import copy
import json
import random
from dataclasses import dataclass
from typing import Any

from bases import RECORDING, Route, resolved
from demos import EXAMPLES, form
from findings import tools
from wire import WEBSOCKET

WORDS = (
    "a",
    "",
    "Once upon a time",
    "é🙂",
    "\u0000",
    "<|im_end|>",
    "<image>",
    "{{7*7}}",
    "../../etc/passwd",
    "demo-chat",
)
WORDS += ("demo-pirate", "demo-embed", "demo-llava", "demo-rerank", "demo-tools", "demo-whisper", "\ud800", "x" * 3000)
ATOMS: tuple[Any, ...] = (
    *WORDS, None, True, False, 0, 1, -1, 2, 3, 0.5, -0.0, 1e308, float("nan"), float("inf"), 1 << 31, 1 << 63,
    -(1 << 63), 10**40, [], {}, [[]], [None], {"a": {}}, [1, "a"], ["a", "b"], [20, 30], {"type": "json_object"},
    "auto", "none",
)  # fmt: skip
EXTRAS: tuple[dict[str, Any], ...] = (
    {"stream": True}, {"logprobs": 2}, {"logprobs": True, "top_logprobs": 2}, {"n": 3}, {"echo": True}, {"stop": ["a"]},
    {"seed": 7, "temperature": 1}, {"prompt_logprobs": 1}, {"response_format": {"type": "json_object"}},
    {"structured_outputs": {"choice": ["yes", "no"]}}, {"structured_outputs": {"regex": "[a-c]{2}"}},
    {"structured_outputs": {"json": {"type": "object"}}}, {"guided_choice": ["a"]}, {"tools": tools(2)},
    {"tools": tools(1), "tool_choice": "required"}, {"use_beam_search": True, "n": 2}, {"model": "demo-pirate"},
    {"adapters": [{"name": "demo-pirate", "weight": 0.5}]}, {"logit_bias": {"20": 5}}, {"allowed_token_ids": [20, 21]},
    {"truncate_prompt_tokens": 3}, {"stream": True, "stream_options": {"include_usage": True}}, {"priority": -5},
    {"cache_salt": "a"}, {"bad_words": ["the"]}, {"min_tokens": 2}, {"chat_template_kwargs": {"a": 1}},
)  # fmt: skip
KINDS = ("application/json", "text/plain", "", "application/x-www-form-urlencoded", "application/json; charset=utf-16")
MAX_TOKENS = 6


@dataclass(frozen=True)
class Made:
    """A request."""

    method: str
    path: str
    body: bytes
    kind: str = "application/json"


class Mutator:
    """Makes one request after another; the same for the same seed and description of the server."""

    def __init__(self, spec: dict[str, Any], routes: list[Route], others: list[str], seed: int) -> None:
        self._spec, self._routes, self._others = spec, routes, others
        self._rng = random.Random(seed)
        self._picture = (EXAMPLES / "picture.png").read_bytes()

    def next(self) -> Made:
        rng = self._rng
        if rng.random() < 0.06:
            method = rng.choice(["GET", "GET", "HEAD", "DELETE", "PUT", "OPTIONS"])
            path = rng.choice(
                [*self._others, "/v1/models/demo-chat", "/v1/models/%2e%2e", "/nothing", "/health?model=x"]
            )
            return Made("GET" if method == "HEAD" else method, path, b"")
        if rng.random() < 0.02:
            return self._spoken()
        route = rng.choice(self._routes)
        body = copy.deepcopy(route.base)
        if rng.random() < 0.4:
            body.update(copy.deepcopy(rng.choice(EXTRAS)))
        for _ in range(rng.choice([0, 1, 1, 2, 3, 5])):
            self._change(body, route)
        self._keep_small(body)
        return self._form(route, body) if route.is_form else self._json(route, body)

    def _change(self, body: dict[str, Any], route: Route) -> None:
        rng = self._rng
        name = rng.choice([*route.fields, *body, "unknown"]) if rng.random() < 0.8 else rng.choice(list(body) or ["x"])
        what = rng.random()
        if what < 0.35:
            body[name] = copy.deepcopy(rng.choice(ATOMS))
        elif what < 0.75:
            body[name] = self._of(route.fields.get(name, {}), 3)
        elif what < 0.85:
            body.pop(name, None)
        elif what < 0.95 and isinstance(body.get(name), list | dict):
            self._inside(body[name])
        else:
            body[name] = [body.get(name)]

    def _inside(self, value: Any) -> None:
        rng = self._rng
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        if keys:
            key = rng.choice(keys)
            if isinstance(value[key], dict | list) and rng.random() < 0.7:
                self._inside(value[key])
            else:
                value[key] = copy.deepcopy(rng.choice(ATOMS))

    def _of(self, schema: dict[str, Any], depth: int) -> Any:
        """A value that a schema allows, or nearly so."""
        rng = self._rng
        schema = resolved(self._spec, schema)
        if schema.get("anyOf"):
            return self._of(rng.choice(schema["anyOf"]), depth)
        if "enum" in schema:
            return rng.choice(schema["enum"])
        kind = schema.get("type")
        if kind in ("integer", "number"):
            return rng.choice([schema.get("minimum", 0), min(schema.get("maximum", 9), 9), 1, 2, 0.3])
        if kind == "boolean":
            return rng.random() < 0.5
        if kind == "array" and depth:
            return [self._of(schema.get("items", {}), depth - 1) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
        if kind == "object" and depth:
            wanted = schema.get("required", ())
            shown = {
                name: part
                for name, part in schema.get("properties", {}).items()
                if name in wanted or rng.random() < 0.3
            }
            return {name: self._of(part, depth - 1) for name, part in shown.items()} or {"a": 1}
        return None if kind == "null" else copy.deepcopy(rng.choice(ATOMS if kind is None else WORDS))

    def _keep_small(self, body: dict[str, Any]) -> None:
        """Few tokens: this is about bad input, not about load."""
        for fields in (body, body.get("sampling_params")):
            if isinstance(fields, dict):
                for name in ("max_tokens", "max_completion_tokens", "max_new_tokens", "min_tokens"):
                    value = fields.get(name)
                    if isinstance(value, int) and value > MAX_TOKENS:
                        fields[name] = MAX_TOKENS
        for name in ("max_tokens", "max_new_tokens"):
            if name not in body and ("prompt" in body or "messages" in body) and self._rng.random() < 0.97:
                body.setdefault("max_tokens", MAX_TOKENS)

    def _json(self, route: Route, body: dict[str, Any]) -> Made:
        rng = self._rng
        raw = json.dumps(body).encode("utf-8", "surrogatepass")
        what = rng.random()
        if what < 0.03:
            raw = raw[: rng.randrange(len(raw) + 1)]
        elif what < 0.05:
            place = rng.randrange(len(raw) + 1)
            raw = raw[:place] + bytes([rng.randrange(256)]) + raw[place:]
        elif what < 0.06:
            raw = raw.replace(b"}", b',"model":"demo-chat"}', 1)
        kind = KINDS[0] if rng.random() < 0.96 else rng.choice(KINDS)
        return Made("POST", route.path, raw, kind)

    def _spoken(self) -> Made:
        """Events of a realtime session."""
        rng = self._rng
        sound = base64.b64encode(RECORDING[44 : 44 + 2 * rng.randrange(16_000)]).decode()
        heard = {"format": {"type": "audio/pcm", "rate": 16_000}, "transcription": {"model": "demo-whisper"}}
        kinds: list[Any] = [
            {"type": "session.update", "session": {"type": "transcription", "audio": {"input": heard}}},
            {"type": "session.update", "model": "demo-whisper"},
            {"type": "transcription_session.update", "session": {"input_audio_format": "pcm16"}},
            {"type": "input_audio_buffer.append", "audio": sound},
            {"type": "input_audio_buffer.commit", "final": True},
            {"type": "input_audio_buffer.clear"},
            {"type": "response.create"},
        ]
        events = [copy.deepcopy(rng.choice(kinds)) for _ in range(rng.choice([1, 3, 6]))]
        for event in events:
            if rng.random() < 0.3:
                self._inside(event)
        lines = [json.dumps(event).encode("utf-8", "surrogatepass") for event in events]
        if rng.random() < 0.2:
            lines[-1] = lines[-1][: rng.randrange(len(lines[-1]))]
        return Made("GET", "/v1/realtime", b"\n".join(lines), WEBSOCKET)

    def _form(self, route: Route, body: dict[str, Any]) -> Made:
        rng = self._rng
        file = rng.choice([RECORDING, RECORDING[:2000], RECORDING[:44], b"", b"RIFF", self._picture, bytes(3000)])
        fields = {str(name): one if isinstance(one, str) else json.dumps(one) for name, one in body.items()}
        fields.setdefault("max_completion_tokens", "8")
        try:
            raw, kind = form(file, **fields)
        except UnicodeEncodeError:
            raw, kind = form(file, model="demo-whisper", max_completion_tokens="8")
        if rng.random() < 0.05:
            raw = raw[: rng.randrange(len(raw))]
        return Made("POST", route.path, raw, kind)
