"""The record of an ended request."""

from __future__ import annotations

import time
from dataclasses import dataclass

from quire.types import ComputeCost, Request, RequestSummary, UsageRecord
from quire.types.request import BACKGROUND
from quire.types.usage import NO_MEDIA, Outcome

KEY = "key:"
NUM_KEY_DIGITS = 12
"""Hexadecimal digits that are shown of a key's digest."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ended. started: the engine had computed its prompt. num_output: tokens that its client got."""

    outcome: Outcome
    started: bool
    num_output: int
    cost: ComputeCost


def tenant_of(client: str) -> str:
    """The name of a client in accounts: also of its requests in the background. Of a key's digest the beginning."""
    name = client.removeprefix(BACKGROUND)
    return name[: len(KEY) + NUM_KEY_DIGITS] if name.startswith(KEY) else name


def record_of(request: Request, summary: RequestSummary, ending: Ending) -> UsageRecord:
    """The record of a request that has ended now.

    Tokens and media of the prompt count if it was computed.
    """
    media = request.prompt.media_use if ending.started else NO_MEDIA
    return UsageRecord(
        id=request.id,
        ended=time.time(),
        tenant=tenant_of(request.client),
        model=summary.model,
        adapter="+".join(summary.adapters),
        endpoint=request.endpoint,
        outcome=ending.outcome,
        input_tokens=summary.num_prompt_tokens if ending.started else 0,
        cached_tokens=summary.num_cached_tokens,
        output_tokens=ending.num_output,
        drafted_tokens=ending.cost.num_drafted,
        accepted_tokens=ending.cost.num_accepted,
        device_s=ending.cost.device_s,
        media_items=media.num_items,
        media_bytes=media.num_bytes,
        audio_s=media.audio_s,
    )
