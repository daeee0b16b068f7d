"""Shapes that the answers of several endpoints share: usage, log-probabilities, chunks of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from quire.server.schema_sampling import StreamOptions
from quire.server_config import ServerConfig
from quire.text.logprobs import Logprob, PositionLogprobs

LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot say."""

HOLE = "\ue000"
"""Where a text will stand."""

_encode = msgspec.json.Encoder().encode


def finite(logprob: float) -> float:
    """A log-probability that JSON can carry."""
    return logprob if logprob >= LOWEST else LOWEST


def usage(
    num_prompt: int,
    num_output: int,
    num_cached: int | None = None,
    num_media: int = 0,
    num_thinking: int | None = None,
) -> dict[str, Any]:
    """The usage object; `num_cached` None leaves the details out. num_media: prompt tokens that are media.
    num_thinking: of the output, those that are reasoning; None where nobody tells them apart."""
    counts: dict[str, Any] = {
        "prompt_tokens": num_prompt,
        "total_tokens": num_prompt + num_output,
        "completion_tokens": num_output,
    }
    if num_cached is not None:
        details = {"multimodal_tokens": num_media} if num_media else {}
        counts["prompt_tokens_details"] = {"cached_tokens": num_cached, **details}
    if num_thinking is not None:
        counts["completion_tokens_details"] = {"reasoning_tokens": num_thinking}
    return counts


def token_name(token_id: int, entry: Logprob, as_ids: bool) -> str:
    """How answers call a token: its text, or `token_id:N`."""
    return f"token_id:{token_id}" if as_ids else entry.decoded_token or ""


def prompt_logprobs(positions: Sequence[PositionLogprobs | None] | None) -> list[msgspec.Raw | None] | None:
    """Per prompt position, token id → log-probability, rank and text, written already."""
    if positions is None:
        return None
    return [None if position is None else msgspec.Raw(_encode(_by_id(position))) for position in positions]


def _by_id(position: PositionLogprobs) -> dict[str, Any]:
    return {
        str(token_id): {"logprob": finite(entry.logprob), "rank": entry.rank, "decoded_token": entry.decoded_token}
        for token_id, entry in position.items()
    }


@dataclass(frozen=True, slots=True)
class UsageWanted:
    """When a stream tells its usage."""

    at_end: bool
    always: bool

    @classmethod
    def of(cls, options: StreamOptions | None, config: ServerConfig) -> UsageWanted:
        """What the request asked for, or the server insists on."""
        at_end = config.enable_force_include_usage or bool(options and options.include_usage)
        return cls(at_end, at_end and bool(options and options.continuous_usage_stats))


class TextEvents:
    """Events that differ only in one text: what stands around it is encoded once."""

    def __init__(self, whole: bytes) -> None:
        """`whole`: such an event with `HOLE` for the text; nothing that a client chose may come after it."""
        self._before, _, self._after = whole.rpartition(_encode(HOLE))

    def event(self, text: str) -> bytes:
        """The event with this text."""
        return self._before + _encode(text) + self._after


class Chunks:
    """Writes the events of one stream; what all have in common is encoded once."""

    def __init__(self, common: Mapping[str, Any]) -> None:
        self._head = b"data: " + _encode(dict(common))[:-1] + b',"choices":['

    def choice(self, choice: Mapping[str, Any], usage: Mapping[str, Any] | None = None, **more: Any) -> bytes:
        """An event with one choice, and what else it should carry."""
        return self._head + _encode(choice) + self._tail(usage, more)

    def final(self, usage: Mapping[str, Any], **more: Any) -> bytes:
        """The event with the usage and no choice."""
        return self._head + self._tail(usage, more)

    def _tail(self, usage: Mapping[str, Any] | None, more: dict[str, Any]) -> bytes:
        if usage is not None:
            more["usage"] = usage
        if not more:
            return b"]}\n\n"
        return b"]," + _encode(more)[1:] + b"\n\n"
