"""Puts a request together as a body of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.plugin import BadRequest
from quire_apis.responses.items import ADDED_TOOLS, Item
from quire_apis.responses.messages import chat_messages
from quire_apis.responses.schemas import PromptFields, ResponseRequest, TextFormat
from quire_apis.responses.tools import Tools, read_tools

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"

REPLACEMENTS = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "include",
    "functions": "tools",
    "function_call": "tool_choice",
}
"""Fields of the chat that have another name here."""

REFUSED = ("n", "best_of", "use_beam_search", "echo", "continue_final_message", "prompt_logprobs", "include_reasoning")
"""Fields of the chat whose results a response cannot hold."""

NOT_PASSED = ("stream_options",)
"""Fields whose meaning differs here."""


def tools_of(fields: PromptFields, items: Sequence[Item]) -> Tools:
    """The tools of a request, with those that its items add. Raises `BadRequest`."""
    added = [tool for item in items if item["type"] == ADDED_TOOLS for tool in item["tools"]]
    return read_tools([*(fields.tools or ()), *added], fields.tool_choice, fields.parallel_tool_calls)


def chat_body(fields: PromptFields, items: Sequence[Item], tools: Tools) -> dict[str, Any]:
    """The body of a chat that answers these items. Raises `BadRequest`."""
    messages = chat_messages(fields.instructions, items, tools.call_name)
    if not messages:
        raise BadRequest("`input` must not be empty.", "input")
    body: dict[str, Any] = {**_passed(fields), "messages": messages, **tools.chat}
    if fields.model is not None:
        body["model"] = fields.model
    if fields.reasoning is not None and fields.reasoning.effort is not None:
        body["reasoning_effort"] = fields.reasoning.effort
    if fields.text is not None and fields.text.format is not None and fields.text.format.type != "text":
        body["response_format"] = _response_format(fields.text.format)
    return {**body, **_sampling(fields)} if isinstance(fields, ResponseRequest) else body


def gives_logprobs(fields: ResponseRequest) -> bool:
    """Whether the texts of a response have log-probabilities."""
    return LOGPROBS in (fields.include or ()) or bool(fields.top_logprobs)


def _passed(fields: PromptFields) -> dict[str, Any]:
    """The fields of the chat that requests may have here too, such as `adapters`, `seed` and `top_k`."""
    passed = dict(fields.model_extra or {})
    for name, other in REPLACEMENTS.items():
        if passed.get(name) is not None:
            raise BadRequest(f"`{name}` is a field of /v1/chat/completions; use `{other}`.", name)
    for name in REFUSED:
        if passed.get(name) not in (None, False, 1):
            raise BadRequest(f"`{name}` is not available here; use /v1/chat/completions.", name)
        passed.pop(name, None)
    return {name: value for name, value in passed.items() if name not in NOT_PASSED}


def _sampling(fields: ResponseRequest) -> dict[str, Any]:
    found = {
        "max_completion_tokens": fields.max_output_tokens,
        "temperature": fields.temperature,
        "top_p": fields.top_p,
        "user": fields.user,
    }
    body: dict[str, Any] = {name: value for name, value in found.items() if value is not None}
    if gives_logprobs(fields):
        body |= {"logprobs": True, "top_logprobs": fields.top_logprobs or 0}
    return body


def _response_format(text: TextFormat) -> dict[str, Any]:
    if text.type == "json_object":
        return {"type": "json_object"}
    if text.json_schema is None:
        raise BadRequest("`text.format` of type json_schema needs a `schema`.", "text.format.schema")
    named = {"name": text.name or "answer", "schema": text.json_schema, "strict": text.strict}
    return {"type": "json_schema", "json_schema": {name: value for name, value in named.items() if value is not None}}
