"""Requests that all replicas answer: those that load and unload adapters, and the metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from quire.errors import EngineDied
from quire.ray.calls import HttpCall, WholeAnswer
from quire.ray.merged_metrics import merged
from quire.ray.stored_adapters import StoredAdapter, StoredAdapters

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

log = logging.getLogger("quire.server")

LOAD, UNLOAD, METRICS = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/metrics"
METRICS_TIMEOUT_S = 5.0
OK, BAD_REQUEST = 200, 400


class AllReplicas:
    """stored: the adapters that replicas which start later load."""

    def __init__(self, replicas: DeploymentHandle[Any], stored: StoredAdapters) -> None:
        self._replicas, self._stored = replicas, stored
        self._changing = asyncio.Lock()

    def answers(self, call: HttpCall) -> bool:
        """Whether all replicas answer the call."""
        return call.path == METRICS or (call.method == "POST" and call.path in (LOAD, UNLOAD))

    async def answer(self, call: HttpCall) -> WholeAnswer:
        """The answer of all. Raises EngineDied if there is no replica."""
        if call.path == METRICS:
            return await self._metrics(call)
        refusal = await self._refusal(call)
        if refusal is not None:
            return refusal
        change = self._load if call.path == LOAD else self._unload
        async with self._changing:
            return await change(call, _fields(call))

    async def _metrics(self, call: HttpCall) -> WholeAnswer:
        plain = call._replace(headers=tuple(each for each in call.headers if each[0].lower() != b"accept"))
        answers = await self._ask("answer", plain, timeout_s=METRICS_TIMEOUT_S)
        refused = next((answer for answer in answers if answer.status != OK), None)
        return refused or merged(answers)

    async def _load(self, call: HttpCall, fields: dict[str, Any]) -> WholeAnswer:
        """All load it, or none: if one cannot, what the others had before comes back."""
        name = str(fields.get("lora_name"))
        before = await asyncio.to_thread(self._stored.get, name)
        new = StoredAdapter(name, {**fields, "load_inplace": True}, time.time_ns())
        await asyncio.to_thread(self._stored.put, new)  # first, for replicas that begin meanwhile
        try:
            answers = await self._ask("load_adapter", call, new)
            refused = next((answer for answer in answers if answer.status != OK), None)
        except BaseException:
            await asyncio.shield(self._restore(name, before))
            raise
        if refused is not None:
            await self._restore(name, before)
        return refused or answers[0]

    async def _unload(self, call: HttpCall, fields: dict[str, Any]) -> WholeAnswer:
        name = str(fields.get("lora_name"))
        before = await asyncio.to_thread(self._stored.get, name)
        await asyncio.to_thread(self._stored.remove, name)
        answers = await self._ask("unload_adapter", call, name)
        done = next((answer for answer in answers if answer.status == OK), None)
        if done is None and before is not None:
            await self._restore(name, before)
        return done or answers[0]

    async def _restore(self, name: str, before: StoredAdapter | None) -> None:
        if before is None:
            await asyncio.to_thread(self._stored.remove, name)
        else:
            await asyncio.to_thread(self._stored.put, before)
        await self._ask("follow_stored_adapters")

    async def _refusal(self, call: HttpCall) -> WholeAnswer | None:
        """Why the sender may load and unload nothing: what a replica says to the sender's unload of no adapter."""
        nothing = call._replace(path=UNLOAD, raw_path=UNLOAD.encode(), query=b"", body=b'{"lora_name": ""}')
        answer: WholeAnswer = await self._replicas.options(method_name="answer").remote(nothing)
        return answer if answer.status != BAD_REQUEST else None

    async def _ask(self, method: str, *args: Any, timeout_s: float | None = None) -> Sequence[Any]:
        """What replicas return, but for those that are lost."""
        called = self._replicas.broadcast(method, *args)
        found = await called.results_async(timeout_s=timeout_s, return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException):
                log.warning("a replica did not answer: %s", each)
        answers = [each for each in found if not isinstance(each, BaseException)]
        if not answers:
            raise EngineDied("There is no replica that answers.")
        return answers


def _fields(call: HttpCall) -> dict[str, Any]:
    """The fields of a JSON body; none if it is not one, of which the replicas say what is wrong."""
    try:
        found = msgspec.json.decode(call.body)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
