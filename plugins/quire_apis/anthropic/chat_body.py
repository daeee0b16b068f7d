"""Puts together the body of `/v1/chat/completions` for a request of the Messages API."""

from __future__ import annotations

from typing import Any

from quire.plugin import BadRequest, ModelFormats
from quire_apis.anthropic.cache_control import cache_ttl
from quire_apis.anthropic.conversation import chat_messages
from quire_apis.anthropic.schemas import CountTokensRequest, MessagesRequest, ThinkingConfig
from quire_apis.anthropic.tools import chat_tools, choice_fields

REFUSED = ("container", "mcp_servers", "n", "best_of", "use_beam_search")
"""Fields of other APIs, or later ones, that would change the answer."""

IGNORED = frozenset(
    {
        "betas",
        "context_management",
        "diagnostics",
        "fallbacks",
        "inference_geo",
        "service_tier",
        "speed",
        "stream_options",
        "user_profile_id",
        "workspace_id",
    }
)
"""Fields of the Messages API that say how Anthropic's servers serve, cache or bill."""

NOT_PASSED_ON = IGNORED | {*REFUSED, "cache_control"}

REASONING_VARIABLES = ("enable_thinking", "thinking")
"""Template variables that turn the reasoning of models on."""


def chat_body(fields: CountTokensRequest, model: str | None, formats: ModelFormats) -> dict[str, Any]:
    """The body, without the number of tokens. model: instead of the requested one, None: the server's default.

    formats: of the model. Fields that are not Anthropic's are passed on, such as `adapters` and `seed`.
    """
    given = fields.model_extra or {}
    for name in REFUSED:
        if given.get(name):
            raise BadRequest(f"`{name}` is not supported by this server.", name)
    body: dict[str, Any] = {name: value for name, value in given.items() if name not in NOT_PASSED_ON}
    if (ttl := cache_ttl(fields)) is not None:
        body.setdefault("cache_ttl", ttl)
    body["messages"] = chat_messages(fields.system, fields.messages)
    if not body["messages"]:
        raise BadRequest("`messages` needs a message with content.", "messages")
    if model is not None:
        body["model"] = model
    if body["messages"][-1]["role"] == "assistant" and _continues(body["messages"]):
        body |= {"add_generation_prompt": False, "continue_final_message": True}
    if fields.tools:
        body["tools"] = chat_tools(fields.tools)
        if fields.tool_choice is not None:
            body |= choice_fields(fields.tool_choice)
    if fields.thinking is not None:
        body |= _thinking_fields(fields.thinking, formats, body.get("chat_template_kwargs"))
    body |= _output_fields(fields)
    return body


def _continues(messages: list[dict[str, Any]]) -> bool:
    """Whether the model continues the last message; an empty one is removed instead."""
    last = messages[-1]
    if last.get("tool_calls"):
        return False
    content = last["content"]
    if isinstance(content, str) and not content.strip() and len(messages) > 1:
        messages.pop()
        return False
    return True


def _thinking_fields(thinking: ThinkingConfig, formats: ModelFormats, kwargs: Any) -> dict[str, Any]:
    is_on = thinking.type != "disabled"
    given = kwargs if isinstance(kwargs, dict) else {}
    fields: dict[str, Any] = {"chat_template_kwargs": {**dict.fromkeys(REASONING_VARIABLES, is_on), **given}}
    if is_on and thinking.budget_tokens is not None and formats.limits_reasoning:
        fields["thinking_token_budget"] = thinking.budget_tokens
    return fields


def _output_fields(fields: CountTokensRequest) -> dict[str, Any]:
    config = fields.output_config
    form = config.format if config is not None and config.format is not None else fields.output_format
    found: dict[str, Any] = {}
    if config is not None and config.effort is not None:
        found["reasoning_effort"] = config.effort
    if form is not None:
        schema = {"name": "answer", "schema": form.json_schema}
        found["response_format"] = {"type": "json_schema", "json_schema": schema}
    return found


def sampling_fields(fields: MessagesRequest) -> dict[str, Any]:
    """How the answer is sampled, where it stops and how it is sent."""
    user = fields.metadata.user_id if fields.metadata is not None else None
    found = {
        "temperature": fields.temperature,
        "top_p": fields.top_p,
        "top_k": fields.top_k,
        "stop": fields.stop_sequences or None,
        "stream": fields.stream or None,
        "user": user,
    }
    return {name: value for name, value in found.items() if value is not None}
