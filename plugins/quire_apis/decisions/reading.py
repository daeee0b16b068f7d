"""Reads the probabilities of labels off the first token of a model's reply, which is never generated further.

The prompts of all questions begin with the state, so that the prefix cache computes it once: the first question is
asked alone, the others together after it. The log-probabilities are those of the model's own distribution. A request
reports the most likely tokens; a label that is not among them is asked for by a request that allows it alone, whose
prompt is cached.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from fastapi import Request

from quire.plugin import BadRequest, RouterContext
from quire_apis.decisions.questions import TypedQuestion
from quire_apis.decisions.schemas import DecisionRequest
from quire_apis.responses_of_routes import called

T = TypeVar("T")

NUM_TOP = 20
"""Most likely tokens that a request reports, unless --max-logprobs allows fewer."""

MAX_AT_ONCE = 8
"""Questions that run at the same time, so that one request does not fill the server's queues."""

MAX_NAMES = 1024
"""Names of models and adapters whose labels are kept."""

MEDIA = {
    "images": ("image_url", "image/png"),
    "videos": ("video_url", "video/mp4"),
    "audios": ("audio_url", "audio/wav"),
}
"""For each field, the type of a part of a message, and the media type of base64; the bytes decide in the end."""


@dataclass(frozen=True, slots=True)
class LabelRead:
    """The probabilities of a question's labels over the whole vocabulary, by token id. top: the most likely token."""

    model: str
    probabilities: Mapping[int, float]
    top: int
    prompt_tokens: int


class LabelIds:
    """The token ids of labels, by the name of a model, looked up once for each."""

    def __init__(self, context: RouterContext) -> None:
        self._context = context
        self._known: dict[str | None, dict[str, int | None]] = {}

    async def find(self, request: Request, model: str | None, labels: Sequence[str]) -> Mapping[str, int]:
        """The id of each label that is one token. Raises `RouteFailed` for an unknown model."""
        known = dict(self._known.get(model, {}))
        for label in labels:
            if label not in known:
                body = {"prompt": label, "add_special_tokens": False, "model": model}
                tokens = (await called(self._context, request, "/tokenize", body))["tokens"]
                known[label] = tokens[0] if len(tokens) == 1 else None
        if len(self._known) >= MAX_NAMES:
            self._known.clear()
        self._known[model] = known
        return {label: token for label, token in known.items() if token is not None}


class LabelReader:
    """Asks the questions of one request. num_top: tokens that a request may report."""

    def __init__(self, context: RouterContext, request: Request, fields: DecisionRequest, num_top: int) -> None:
        self._context, self._request, self._num_top = context, request, num_top
        self._model = fields.model
        self._media = [part for name in MEDIA for part in _parts(name, getattr(fields, name) or ())]
        state = fields.state if isinstance(fields.state, str) else msgspec.json.encode(fields.state).decode()
        self._before = "\n\n".join(filter(None, (fields.instructions, state)))
        self._common = {
            "chat_template_kwargs": {"enable_thinking": False, **(fields.chat_template_kwargs or {})},
            "priority": fields.priority,
            **({"cache_salt": fields.cache_salt} if fields.cache_salt else {}),
            "max_tokens": 1,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": True,
            "return_tokens_as_token_ids": True,
        }

    async def read_all(self, questions: Sequence[tuple[TypedQuestion, Sequence[int]]]) -> list[LabelRead]:
        """What the model would reply to each question. questions: each with the token ids of its labels."""
        limit = asyncio.Semaphore(MAX_AT_ONCE)

        async def read(question: TypedQuestion, ids: Sequence[int]) -> LabelRead:
            async with limit:
                return await self._read(question, ids)

        first = await read(*questions[0])
        return [first, *await _all_of([read(*one) for one in questions[1:]])]

    async def _read(self, question: TypedQuestion, ids: Sequence[int]) -> LabelRead:
        text = f"{self._before}\n\n{question.text()}"
        content: Any = [*self._media, {"type": "text", "text": text}] if self._media else text
        body = {**self._common, "model": self._model, "messages": [{"role": "user", "content": content}]}
        answer, reported = await self._first_token({**body, "top_logprobs": self._num_top})
        top = next(iter(reported))
        missing = [one for one in ids if one not in reported]
        for one in missing:  # each computes one token, and the page of the cache that is not full
            _, alone = await self._first_token({**body, "top_logprobs": 0, "allowed_token_ids": [one]})
            reported |= alone
        probabilities = {one: math.exp(reported.get(one, -math.inf)) for one in ids}
        return LabelRead(answer.model, probabilities, top, answer.usage().prompt)

    async def _first_token(self, body: Mapping[str, Any]) -> tuple[Any, dict[int, float]]:
        """The answer, and log-probabilities by token id, the most likely or only token first."""
        answer = await self._context.chat(self._request, body)
        entries: list[Any] = []
        async with aclosing(answer.deltas()) as deltas:
            async for delta in deltas:
                entries += delta.logprobs
        entry = msgspec.json.decode(entries[0])
        tokens = [*entry["top_logprobs"], entry]
        return answer, {_id_of(one["token"]): _finite(one["logprob"]) for one in tokens}


def label_ids(question: TypedQuestion, known: Mapping[str, int]) -> list[list[int]]:
    """The token ids of the labels of each option. Raises `BadRequest` if an option has none, or two have the same."""
    param = f"questions.{question.id}"
    found = [sorted({known[label] for label in option.labels if label in known}) for option in question.options]
    for option, ids in zip(question.options, found, strict=True):
        if not ids:
            label = " or ".join(map(repr, option.labels))
            raise BadRequest(f"`{param}` cannot be asked: {label} is not one token of this model.", param)
    distinct = {one for ids in found for one in ids}
    if len(distinct) < sum(map(len, found)):
        raise BadRequest(f"`{param}` cannot be asked: two of its labels are the same token of this model.", param)
    return found


async def _all_of(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all; the first error ends the others."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _parts(name: str, links: Sequence[str]) -> list[dict[str, Any]]:
    kind, media_type = MEDIA[name]
    urls = [link if ":" in link[:8] else f"data:{media_type};base64,{link}" for link in links]
    return [{"type": kind, kind: {"url": url}} for url in urls]


def _id_of(token: str) -> int:
    return int(token.removeprefix("token_id:"))


def _finite(logprob: float | None) -> float:
    return -math.inf if logprob is None else logprob
