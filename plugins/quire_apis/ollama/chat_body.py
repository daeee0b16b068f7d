"""Turns requests of Ollama's API into bodies of `/v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from quire.plugin import BadRequest, ModelFormats
from quire_apis.ollama.schemas import OllamaChatRequest, OllamaGenerateRequest, OllamaMessage, OllamaRequest

OPTIONS: Mapping[str, str] = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "seed": "seed",
    "stop": "stop",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "typical_p": "typical_p",
    "tfs_z": "tfs_z",
    "mirostat": "mirostat",
}
"""Options of a request, and the fields here. The others, such as `num_ctx` and `num_gpu`, say how Ollama loads a
model."""

REASONING_VARIABLES = ("enable_thinking", "thinking")
"""Template variables that turn the reasoning of models on."""


def chat_body(fields: OllamaChatRequest, model: str, formats: ModelFormats) -> dict[str, Any]:
    """The body of `/v1/chat/completions`. Raises `BadRequest`."""
    body = {**_common(fields, model), **_think_fields(fields, formats)}
    body["messages"] = [_message(message) for message in fields.messages or ()]
    if fields.tools:
        body["tools"] = fields.tools
    return body


def prompt_body(fields: OllamaGenerateRequest, model: str) -> dict[str, Any]:
    """The body of `/v1/completions`, for a prompt that no template changes. Raises `BadRequest`."""
    _check_prompt_fields(fields)
    if fields.images:
        raise BadRequest("`images` need the model's template; leave out `raw`.", "images")
    body = {**_common(fields, model), "prompt": fields.prompt or ""}
    if fields.logprobs:
        body["logprobs"] = fields.top_logprobs or 0
    body.pop("top_logprobs", None)
    return body


def question_body(fields: OllamaGenerateRequest, model: str, formats: ModelFormats) -> dict[str, Any]:
    """The body of `/v1/chat/completions`, for a prompt that the user of a conversation says. Raises `BadRequest`."""
    _check_prompt_fields(fields)
    user = OllamaMessage(role="user", content=fields.prompt or "", images=fields.images)
    messages = [_message(user)]
    if fields.system:
        messages.insert(0, {"role": "system", "content": fields.system})
    return {**_common(fields, model), **_think_fields(fields, formats), "messages": messages}


def _check_prompt_fields(fields: OllamaGenerateRequest) -> None:
    if fields.template:
        raise BadRequest("`template` is a template of Go, which this server does not run; use `raw`.", "template")
    if fields.context:
        raise BadRequest("`context` is not supported; send the conversation to /api/chat.", "context")
    if fields.suffix:
        raise BadRequest("`suffix` would change the answer and is not supported by this server.", "suffix")


def _common(fields: OllamaRequest, model: str) -> dict[str, Any]:
    options = fields.options or {}
    body: dict[str, Any] = {"model": model}
    body |= {ours: options[name] for name, ours in OPTIONS.items() if options.get(name) is not None}
    limit = options.get("num_predict")
    if limit not in (None, -1, -2):  # as long as the model likes, and as long as the context
        body["max_tokens"] = limit
    if fields.format == "json":
        body["response_format"] = {"type": "json_object"}
    elif isinstance(fields.format, dict):
        schema = {"name": "answer", "schema": fields.format}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    if fields.logprobs:
        body |= {"logprobs": True, "top_logprobs": fields.top_logprobs or 0}
    if fields.stream:
        body["stream"] = True
    return body


def _think_fields(fields: OllamaRequest, formats: ModelFormats) -> dict[str, Any]:
    think = fields.think
    if think is None:
        return {}
    if think is False or think == "none":
        return {"reasoning_effort": "none"}
    if formats.reasoning_parser is None:
        raise BadRequest(
            "`think` needs a model that reasons, and a server that knows its format (--reasoning-parser).", "think"
        )
    found: dict[str, Any] = {"chat_template_kwargs": dict.fromkeys(REASONING_VARIABLES, True)}
    return found if think is True else {**found, "reasoning_effort": think}


def _message(message: OllamaMessage) -> dict[str, Any]:
    content: Any = message.content
    if message.images:
        pictures = [{"type": "image_url", "image_url": {"url": _picture_url(data)}} for data in message.images]
        content = [*pictures, {"type": "text", "text": message.content}]
    found: dict[str, Any] = {"role": message.role, "content": content}
    if message.thinking:
        found["reasoning"] = message.thinking
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "id": call.id or f"call_{number}",
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": json.dumps(call.function.arguments, ensure_ascii=False),
                },
            }
            for number, call in enumerate(message.tool_calls)
        ]
    if message.tool_name:
        found["name"] = message.tool_name
    if message.tool_call_id:
        found["tool_call_id"] = message.tool_call_id
    return found


def _picture_url(data: str) -> str:
    return data if data.startswith("data:") else f"data:;base64,{data}"
