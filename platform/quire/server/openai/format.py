"""The parts of responses that several endpoints share: usage, log-probabilities, chunks of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from quire.server.schemas.sampling import StreamOptions
from quire.settings.server_config import ServerConfig
from quire.text.outputs.logprobs import Logprob, PositionLogprobs

MIN_LOGPROB = -9999.0
"""Lower log-probabilities are sent as this number, because JSON has no infinity."""

PLACEHOLDER = "\ue000"
"""Replaced by the text of each event in a `TextEventTemplate`."""

_encode = msgspec.json.Encoder().encode


def finite(logprob: float) -> float:
    """A log-probability that is valid JSON."""
    return logprob if logprob >= MIN_LOGPROB else MIN_LOGPROB


def usage(
    num_prompt: int,
    num_output: int,
    num_cached: int | None = None,
    num_media: int = 0,
    num_reasoning: int | None = None,
    num_predicted: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """The usage object.

    num_cached: prompt tokens from the prefix cache, None: leave the details out. num_media: prompt tokens of media.
    num_reasoning: output tokens of reasoning, None: the answer has no reasoning parser. num_predicted: tokens of the
    prediction that are in the output and that are not, None: the request has no prediction.
    """
    counts: dict[str, Any] = {
        "prompt_tokens": num_prompt,
        "total_tokens": num_prompt + num_output,
        "completion_tokens": num_output,
    }
    if num_cached is not None:
        details = {"multimodal_tokens": num_media} if num_media else {}
        counts["prompt_tokens_details"] = {"cached_tokens": num_cached, **details}
    details_of_output = {} if num_reasoning is None else {"reasoning_tokens": num_reasoning}
    if num_predicted is not None:
        accepted, rejected = num_predicted
        details_of_output |= {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}
    if details_of_output:
        counts["completion_tokens_details"] = details_of_output
    return counts


def token_name(token_id: int, entry: Logprob, as_ids: bool) -> str:
    """The text of a token, or `token_id:N`."""
    return f"token_id:{token_id}" if as_ids else entry.decoded_token or ""


def prompt_logprobs(positions: Sequence[PositionLogprobs | None] | None) -> list[msgspec.Raw | None] | None:
    """For each prompt position the encoded object {token id: log-probability, rank and text}, None for the first."""
    if positions is None:
        return None
    return [None if position is None else msgspec.Raw(_encode(_by_token_id(position))) for position in positions]


def _by_token_id(position: PositionLogprobs) -> dict[str, Any]:
    return {
        str(token_id): {"logprob": finite(entry.logprob), "rank": entry.rank, "decoded_token": entry.decoded_token}
        for token_id, entry in position.items()
    }


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """Which events of a stream carry the usage: a last event, or every event."""

    at_end: bool
    always: bool

    @classmethod
    def from_options(cls, options: StreamOptions | None, config: ServerConfig) -> StreamUsage:
        """The usage that the request asks for, or that the server always sends."""
        at_end = config.enable_force_include_usage or bool(options and options.include_usage)
        return cls(at_end, at_end and bool(options and options.continuous_usage_stats))


class TextEventTemplate:
    """Writes events that differ only in one text; everything around the text is encoded once."""

    def __init__(self, event: bytes) -> None:
        """event: with `PLACEHOLDER` as its text, which must be the last occurrence of `PLACEHOLDER` in it."""
        self._before, _, self._after = event.rpartition(_encode(PLACEHOLDER))

    def event(self, text: str) -> bytes:
        return self._before + _encode(text) + self._after


class ChunkEncoder:
    """Encodes the events of one stream; the fields that all events share are encoded once."""

    def __init__(self, common: Mapping[str, Any]) -> None:
        self._head = b"data: " + _encode(dict(common))[:-1] + b',"choices":['

    def choice(self, choice: Mapping[str, Any], usage: Mapping[str, Any] | None = None, **more: Any) -> bytes:
        """An event with one choice, optional usage and further fields."""
        return self._head + _encode(choice) + self._tail(usage, more)

    def final(self, usage: Mapping[str, Any], **more: Any) -> bytes:
        """The last event, with the usage and no choice."""
        return self._head + self._tail(usage, more)

    def _tail(self, usage: Mapping[str, Any] | None, more: dict[str, Any]) -> bytes:
        if usage is not None:
            more["usage"] = usage
        if not more:
            return b"]}\n\n"
        return b"]," + _encode(more)[1:] + b"\n\n"
