"""Log-probabilities in the shape of the chat API. It knows no requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from quire.server.wire import finite, token_name
from quire.text.logprobs import Logprob, PositionLogprobs

_encode = msgspec.json.Encoder().encode


def chat_logprobs(
    token_ids: Sequence[int], positions: Sequence[PositionLogprobs], num_top: int, as_ids: bool
) -> dict[str, Any]:
    """One entry per token, each with the `num_top` most likely tokens of its place (-1: all that there are)."""
    content = []
    for token_id, position in zip(token_ids, positions, strict=True):
        ranked = sorted(position.items(), key=lambda item: item[1].rank or 0)
        top = ranked if num_top < 0 else ranked[:num_top]
        entry = _entry(token_id, position[token_id], as_ids)
        entry["top_logprobs"] = [_entry(other, logprob, as_ids) for other, logprob in top]
        content.append(msgspec.Raw(_encode(entry)))  # a position at a time, so that others get their turn
    return {"content": content}


def _entry(token_id: int, logprob: Logprob, as_ids: bool) -> dict[str, Any]:
    text = token_name(token_id, logprob, as_ids)
    raw = logprob.token_bytes if logprob.token_bytes is not None else text.encode()
    return {"token": text, "logprob": finite(logprob.logprob), "bytes": list(raw)}
