"""Conformance of routing policies, with the router of the server."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from quire.params.sampling import SamplingParams
from quire.records import Context, RoutingPolicy
from quire.routing.router import RequestRouter
from quire.types import AdapterRef, Prompt, Request, WeightedAdapter
from quire_testing.require import require

MAX_SHARE = 3.0
"""Load of the busiest replica, as a multiple of the mean, when requests have nothing in common."""


def check_routing_policy(
    record: RoutingPolicy, *, options: Mapping[str, Any] | None = None, seed: int = 0, num_requests: int = 400
) -> None:
    """It chooses a candidate each time, also while replicas come and go, and leaves none without work.

    Requests share prefixes and adapters at first; later ones have nothing in common and must be spread: the busiest
    replica may get at most `MAX_SHARE` times the mean.
    """
    for count in (1, 2, 5, 64):
        random = Random(seed)
        router = RequestRouter(count, record.build(Context(options=options or {})), seed)
        router.add_model("m", 10_000, 4)
        for number in range(num_requests):
            mask = random.randrange(1, 1 << count) if number % 4 == 0 else (1 << count) - 1
            placement = router.place("m", _request(number, random, shared=True), mask)
            require(
                isinstance(placement.replica, int) and 0 <= placement.replica < count and mask >> placement.replica & 1,
                f"{record.name} chose {placement.replica!r:.80} of the replicas in {mask:b}.",
            )
            if random.random() < 0.5:
                router.began(placement)
                router.ended(placement)
        placed = [0] * count
        for number in range(max(num_requests, 20 * count)):
            request = _request(num_requests + number, random, shared=False)
            placed[router.place("m", request, (1 << count) - 1).replica] += 1
        require(
            max(placed) <= MAX_SHARE * sum(placed) / count,
            f"{record.name} gave one of {count} replicas {max(placed)} of {sum(placed)} requests without anything in "
            "common.",
        )


def _request(number: int, random: Random, *, shared: bool) -> Request:
    prefix, adapter = (random.randrange(6), random.randrange(6)) if shared else (number, None)
    uses = () if adapter is None else (WeightedAdapter(AdapterRef(name=f"adapter-{adapter}")),)
    return Request(
        id=str(number),
        prompt=Prompt(token_ids=(prefix,) * 200 + (number,) * 70),
        params=SamplingParams(),
        adapters=uses,
    )
