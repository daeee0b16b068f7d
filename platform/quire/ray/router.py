"""Chooses a replica for each request: the routing of `--data-parallel-size`, behind the interface of Ray Serve.

The router sees requests before they are tokenized. What stands for tokens are groups of four bytes of the prompt, so
prefixes are found as text, and loads are in about as many tokens as the model has.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter as ServeRouter, RunningReplica

from quire.hooks.registry import load
from quire.params.sampling import SamplingParams
from quire.ray.calls import MAX_KEY_BYTES, HttpCall
from quire.routing.chosen_policy import ChosenPolicy
from quire.routing.router import Placement, RequestRouter
from quire.types import AdapterRef, Prompt, Request, WeightedAdapter

if TYPE_CHECKING:
    from ray.serve._private.replica_result import ReplicaResult

ALL = "all"
"""One entry of the routing code stands for all models: their names are part of what identifies a prefix."""

MAX_REPLICAS = 1024
"""Numbers that replicas may have at the same time."""

TOKEN_BYTES = 4
PROMPTS = ("tools", "messages", "prompt", "input", "instructions", "query", "documents", "text_1", "text_2")
"""Fields of requests that make the prompt, in the order in which templates usually write them."""


class ReplicaRouter(ServeRouter):  # type: ignore[misc]
    """Each process that sends requests has one, which knows the requests of this process only."""

    def initialize_state(
        self, policy: str, models: Sequence[str], cache_tokens: int, adapter_slots: int, plugins: Sequence[str] | None
    ) -> None:
        """Called by Ray Serve with `request_router_kwargs`. cache_tokens, adapter_slots: of each replica."""
        self._places = RequestRouter(MAX_REPLICAS, ChosenPolicy(load(plugins), policy))
        self._places.add_model(ALL, cache_tokens, adapter_slots)
        self._base_models = frozenset(models)
        self._numbers: dict[ReplicaID, int] = {}
        self._placements: dict[str, Placement] = {}

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called by Ray Serve when replicas have come or gone."""
        running = {replica.replica_id for replica in replicas}
        for lost in self._numbers.keys() - running:
            self._places.restarted(self._numbers.pop(lost))
        taken = set(self._numbers.values())
        free = (number for number in range(MAX_REPLICAS) if number not in taken)
        for added in running - self._numbers.keys():
            self._numbers[added] = next(free)
        super().update_replicas(replicas)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The chosen one, then the others, the least loaded first, in case it takes no more requests."""
        candidates = {
            self._numbers[replica.replica_id]: replica
            for replica in candidate_replicas
            if replica.replica_id in self._numbers
        }
        if pending_request is None or not candidates:
            return [list(candidate_replicas)]
        pending_request.routing_context.should_backoff = True
        placement = self._placed(pending_request, [*candidates])
        self._places.ended(placement)  # it counts from `on_request_routed` on
        first = candidates.pop(placement.replica)
        return [[first], *([candidates[n]] for n in sorted(candidates, key=self._places.load))]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult) -> None:
        """Called by Ray Serve when a request was sent."""
        if replica_id in self._numbers:
            request_id = pending_request.metadata.internal_request_id
            self._placements[request_id] = self._placed(pending_request, [self._numbers[replica_id]])

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Called by Ray Serve when a request has ended."""
        if placement := self._placements.pop(internal_request_id, None):
            self._places.ended(placement)

    def _placed(self, pending: PendingRequest, replicas: Sequence[int]) -> Placement:
        request = routed_request(pending.args[0] if pending.args else None, self._base_models)
        return self._places.place(ALL, request, sum(1 << replica for replica in replicas))


def routed_request(call: Any, base_models: frozenset[str]) -> Request:
    """What the routing code sees of a call. A model that is no base model is an adapter."""
    fields = _fields(call)
    model = fields.get("model")
    named = model if isinstance(model, str) else ""
    is_adapter = bool(named) and named not in base_models
    prompt = b"".join(msgspec.json.encode(fields[name]) for name in PROMPTS if name in fields)[:MAX_KEY_BYTES]
    groups = array("I", prompt + bytes(-len(prompt) % TOKEN_BYTES))
    if sys.byteorder == "big":
        groups.byteswap()
    return Request(
        id="",
        prompt=Prompt(token_ids=tuple(groups)),
        params=SamplingParams(),
        adapters=(WeightedAdapter(AdapterRef(name=named)),) if is_adapter else (),
        cache_salt=f"{named} {fields.get('cache_salt')}",
    )


def _fields(call: Any) -> Mapping[str, Any]:
    if not isinstance(call, HttpCall) or not call.body:
        return {}
    try:
        found = msgspec.json.decode(call.body)
    except (msgspec.DecodeError, RecursionError):  # the replica will say what is wrong
        return {}
    return found if isinstance(found, dict) else {}
