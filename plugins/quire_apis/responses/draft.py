"""The response object: what a request asked for, and how far it has come."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from quire.plugin import AnswerUsage, BadRequest, Overloaded, QuireError
from quire_apis.responses.items import new_id
from quire_apis.responses.schemas import ResponseRequest

RUNNING = ("queued", "in_progress")
DEFAULT_TIER = "default"


def new_response(fields: ResponseRequest, model: str, conversation: str | None) -> dict[str, Any]:
    """The response object of a request whose answer has not begun. model: the name of the model that answers."""
    text: dict[str, Any] = {"format": {"type": "text"}}
    if fields.text is not None:
        text |= fields.text.model_dump(exclude_none=True, by_alias=True)
    if text["format"]["type"] == "json_schema":
        text["format"] = {"name": "answer", **text["format"]}
    reasoning = fields.reasoning
    summary = None if reasoning is None else reasoning.summary or reasoning.generate_summary
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "queued" if fields.background else "in_progress",
        "background": fields.background,
        "error": None,
        "incomplete_details": None,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "max_tool_calls": fields.max_tool_calls,
        "model": model,
        "output": [],
        "parallel_tool_calls": fields.parallel_tool_calls,
        "previous_response_id": fields.previous_response_id,
        "conversation": None if conversation is None else {"id": conversation},
        "prompt_cache_key": fields.prompt_cache_key,
        "prompt_cache_retention": fields.prompt_cache_retention,
        "reasoning": {"effort": None if reasoning is None else reasoning.effort, "summary": summary},
        "safety_identifier": fields.safety_identifier,
        "service_tier": DEFAULT_TIER,
        "store": fields.store,
        "temperature": fields.temperature,
        "text": text,
        "tool_choice": "auto" if fields.tool_choice is None else fields.tool_choice,
        "tools": list(fields.tools or ()),
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": fields.top_p,
        "truncation": fields.truncation,
        "usage": None,
        "user": fields.user,
        "metadata": fields.metadata or {},
    }


def usage(counts: AnswerUsage) -> dict[str, Any]:
    """The object with the numbers of tokens."""
    return {
        "input_tokens": counts.prompt,
        "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": 0},
        "output_tokens": counts.output,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning},
        "total_tokens": counts.prompt + counts.output,
    }


def error_object(error: QuireError) -> dict[str, Any]:
    """The `error` of a response that failed."""
    code = "server_error"
    if isinstance(error, Overloaded):
        code = "rate_limit_exceeded"
    elif isinstance(error, BadRequest):
        code = "invalid_prompt"
    return {"code": code, "message": error.message}


def ended(
    response: Mapping[str, Any], status: str, output: Sequence[Mapping[str, Any]], counts: AnswerUsage | None
) -> dict[str, Any]:
    """The response after its end. status: completed, incomplete, failed or cancelled."""
    found = {**response, "status": status, "output": list(output)}
    if counts is not None:
        found["usage"] = usage(counts)
    if status == "completed":
        found["completed_at"] = int(time.time())
    if status == "incomplete":
        found["incomplete_details"] = {"reason": "max_output_tokens"}
    return found
