"""What requests used: what a request cost the engine, its media, and the record of an ended request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

Outcome = Literal["finished", "aborted", "failed"]
"""How a request ended: its answer was complete; its client or the server ended it; an error ended it."""


class ComputeCost(NamedTuple):
    """What a request has cost an engine so far. device_s: its share of the seconds of steps, by tokens."""

    device_s: float = 0.0
    num_drafted: int = 0
    num_accepted: int = 0


class MediaUse(NamedTuple):
    """The media of a prompt. num_bytes: of the files as they were sent. audio_s: seconds of audio."""

    num_items: int = 0
    num_bytes: int = 0
    audio_s: float = 0.0


NO_MEDIA = MediaUse()


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageRecord:
    """An ended request, or the sum of several of one tenant, model, adapter, endpoint and outcome.

    id: unique for ever; a record that arrives twice counts once. ended: Unix time; of a sum, when its first one ended.
    tenant: the name of the client. adapter: "" = none; several are joined by +. endpoint: path of the route.
    device_s: the request's share of the seconds of steps, by tokens.
    """

    id: str
    ended: float
    tenant: str
    model: str
    adapter: str
    endpoint: str
    outcome: Outcome
    num_requests: int = 1
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    device_s: float = 0.0
    media_items: int = 0
    media_bytes: int = 0
    audio_s: float = 0.0

    @property
    def key(self) -> UsageKey:
        """What records must have in common to be summed."""
        return UsageKey(self.tenant, self.model, self.adapter, self.endpoint, self.outcome)

    def plus(self, other: UsageRecord) -> UsageRecord:
        """The sum with another record of the same key, under this one's id."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in AMOUNTS}
        return replace(self, ended=min(self.ended, other.ended), **sums)


class UsageKey(NamedTuple):
    """What usage is summed by."""

    tenant: str
    model: str
    adapter: str
    endpoint: str
    outcome: Outcome


AMOUNTS = (
    *("num_requests", "input_tokens", "cached_tokens", "output_tokens", "drafted_tokens", "accepted_tokens"),
    *("device_s", "media_items", "media_bytes", "audio_s"),
)
"""The fields of a record that are summed."""
