"""Turns requests of Cohere's chat API into bodies of `/v1/chat/completions`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from quire.plugin import BadRequest, ModelFormats
from quire_apis.cohere.schemas import CohereChatRequest, CohereDocument, CohereMessage, CoherePart

FIELDS = {
    "max_tokens": "max_tokens",
    "stop_sequences": "stop",
    "temperature": "temperature",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "k": "top_k",
    "p": "top_p",
    "model": "model",
}
"""Fields of a request, and their names here."""

IGNORED = frozenset({"citation_options", "safety_mode", "raw_prompting"})
"""Fields of Cohere's models: citations are not made, and no safety instructions are added."""

REASONING_VARIABLES = ("enable_thinking", "thinking")
"""Template variables that turn the reasoning of models on."""


def chat_body(fields: CohereChatRequest, formats: ModelFormats) -> dict[str, Any]:
    """The body. formats: of the model. Fields that are not Cohere's are passed on, such as `adapters`."""
    body: dict[str, Any] = {name: value for name, value in (fields.model_extra or {}).items() if name not in IGNORED}
    body |= {ours: value for name, ours in FIELDS.items() if (value := getattr(fields, name)) not in (None, [])}
    body["messages"] = [_message(message, f"messages[{number}]") for number, message in enumerate(fields.messages)]
    if fields.documents:
        _add_documents(body, fields.documents, formats)
    if fields.tools:
        body["tools"] = [_tool(tool, fields.strict_tools) for tool in fields.tools]
        if fields.tool_choice is not None:
            body["tool_choice"] = fields.tool_choice.lower()
    if fields.response_format is not None and fields.response_format.type == "json_object":
        body["response_format"] = _format(fields)
    if fields.thinking is not None:
        body |= _thinking_fields(fields, formats)
    if fields.logprobs:
        body |= {"logprobs": True, "return_tokens_as_token_ids": True}
    if fields.stream:
        body["stream"] = True
    return body


def _format(fields: CohereChatRequest) -> dict[str, Any]:
    assert fields.response_format is not None
    schema = fields.response_format.json_schema or fields.response_format.older_schema
    if schema is None:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def _thinking_fields(fields: CohereChatRequest, formats: ModelFormats) -> dict[str, Any]:
    assert fields.thinking is not None
    if fields.thinking.type == "disabled":
        return {"reasoning_effort": "none"}
    found: dict[str, Any] = {"chat_template_kwargs": dict.fromkeys(REASONING_VARIABLES, True)}
    if fields.thinking.token_budget is not None and formats.limits_reasoning:
        found["thinking_token_budget"] = fields.thinking.token_budget
    return found


def _tool(tool: dict[str, Any], strict: bool) -> dict[str, Any]:
    function = tool.get("function")
    return {**tool, "function": {**function, "strict": True}} if strict and isinstance(function, dict) else tool


def _add_documents(body: dict[str, Any], documents: Sequence[str | CohereDocument], formats: ModelFormats) -> None:
    """Give the documents to the template, or write them into the system prompt for a template that has none."""
    found = [_document(document, number) for number, document in enumerate(documents)]
    if "documents" in (formats.template or ""):
        body["documents"] = found
        return
    text = "\n\n".join(json.dumps(document, ensure_ascii=False) for document in found)
    text = f"Use these documents:\n\n{text}"
    messages = body["messages"]
    if messages[0]["role"] == "system" and isinstance(messages[0]["content"], str):
        messages[0]["content"] += f"\n\n{text}"
    else:
        messages.insert(0, {"role": "system", "content": text})


def _document(document: str | CohereDocument, number: int) -> dict[str, Any]:
    if isinstance(document, str):
        return {"id": str(number), "text": document}
    return {"id": document.id or str(number), **document.data}


def _message(message: CohereMessage, where: str) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role}
    parts = message.content if isinstance(message.content, list) else []
    thinking = "".join(part.thinking or "" for part in parts if part.type == "thinking")
    if thinking:
        found["reasoning"] = thinking
    said = [_part(part, f"{where}.content[{i}]") for i, part in enumerate(parts) if part.type != "thinking"]
    if isinstance(message.content, str):
        said = [{"type": "text", "text": message.content}]
    if message.tool_plan:
        said.insert(0, {"type": "text", "text": message.tool_plan})
    if all(part["type"] == "text" for part in said):
        found["content"] = "\n".join(part["text"] for part in said)
    else:
        found["content"] = said
    if message.tool_calls:
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": call.function.model_dump()} for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    return found


def _part(part: CoherePart, where: str) -> dict[str, Any]:
    if part.type == "image_url" and part.image_url is not None:
        return {"type": "image_url", "image_url": part.image_url}
    if part.type == "document" and part.document is not None:
        return {"type": "text", "text": json.dumps(part.document.get("data", part.document), ensure_ascii=False)}
    if part.type == "text" and part.text is not None:
        return {"type": "text", "text": part.text}
    raise BadRequest(f"`{where}` of type {part.type} needs `{part.type}`.", where)
