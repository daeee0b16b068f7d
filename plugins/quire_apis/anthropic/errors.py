"""Errors in the shape of Anthropic's API: `{"type": "error", "error": {"type", "message"}, "request_id"}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.errors import PromptTooLong, QuireError

TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    501: "invalid_request_error",
    503: "overloaded_error",
}
"""Error type by HTTP status; "api_error" for all others."""

TOO_LONG = "prompt is too long"
"""How Anthropic's message about a long prompt begins: clients that find it shorten the conversation."""


def error_body(error: QuireError, request_id: str | None) -> dict[str, Any]:
    """The body of an error response, and the data of an `error` event."""
    message = f"{TOO_LONG}: {error.message}" if isinstance(error, PromptTooLong) else error.message
    kind = TYPES.get(error.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}
