"""Reads how long the prompt of a request is to be cached."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quire.plugin import BadRequest
from quire_apis.anthropic.schemas import CountTokensRequest, MessageBlock

SECONDS = {"5m": 300.0, "1h": 3600.0}
DEFAULT = "5m"


def cache_ttl(fields: CountTokensRequest) -> float | None:
    """The longest time in seconds that a `cache_control` of the request names; None without any. Raises BadRequest.

    It says for how long: what is cached does not depend on where it stands, since any common beginning is found.
    """
    return max((_seconds(given) for given in _given(fields)), default=None)


def _given(fields: CountTokensRequest) -> Iterator[Any]:
    """Every `cache_control`: of the request, of tools, and of blocks, also within results of tools."""
    extra = [fields.model_extra or {}, *(tool.model_extra or {} for tool in fields.tools or ())]
    contents = [fields.system, *(turn.content for turn in fields.messages)]
    blocks = [
        block for content in contents if content is not None and not isinstance(content, str) for block in content
    ]
    for block in blocks:
        extra += _with_nested(block)
    yield from (each["cache_control"] for each in extra if each.get("cache_control") is not None)


def _with_nested(block: MessageBlock) -> list[dict[str, Any]]:
    own = block.model_extra or {}
    nested = own.get("content")
    return [own, *(each for each in nested if isinstance(each, dict))] if isinstance(nested, list) else [own]


def _seconds(given: Any) -> float:
    if not isinstance(given, dict) or given.get("type") != "ephemeral":
        raise BadRequest('`cache_control` must be {"type": "ephemeral"}, perhaps with a `ttl`.', "cache_control")
    ttl = given.get("ttl") or DEFAULT
    if not isinstance(ttl, str) or ttl not in SECONDS:
        allowed = ", ".join(SECONDS)
        raise BadRequest(f"`ttl` of `cache_control` must be one of {allowed}; got {ttl!r:.40}.", "cache_control")
    return SECONDS[ttl]
