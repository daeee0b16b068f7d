"""Renders the messages of a chat request to the prompt text. It blocks, so callers use a worker thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quire.errors import BadRequest
from quire.server.schemas.requests import ChatRequest, ChatRequestMessage, TemplateFields
from quire.server.service.models import ServedModel
from quire.server.service.service import Service

REASONING_VARIABLES = ("enable_thinking", "thinking")
"""Template variables; False turns the reasoning of the model off."""


@dataclass(frozen=True, kw_only=True)
class RenderedPrompt:
    """A rendered conversation.

    text: the prompt. role: the author of the next message. media: the items of each modality, in the order of their
    placeholders. echo: text with which the answer begins.
    """

    text: str
    role: str
    media: Mapping[str, Any] = field(default_factory=dict)
    echo: str = ""


def render(service: Service, served: ServedModel, fields: ChatRequest) -> RenderedPrompt:
    """Render the prompt of a chat completion."""
    kwargs = dict(fields.chat_template_kwargs or {})
    if fields.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", fields.reasoning_effort)
    if fields.reasoning_effort == "none":
        for name in REASONING_VARIABLES:
            kwargs.setdefault(name, False)
    last = fields.messages[-1]
    role = served.response_role if fields.add_generation_prompt else last.role
    echo = _text_of(last) if fields.echo and last.role == role else ""
    if service.config.exclude_tools_when_tool_choice_none and fields.tool_choice == "none":
        fields = fields.model_copy(update={"tools": None})
    return replace(render_template(service, served, fields, fields.messages, kwargs), role=role, echo=echo)


def render_template(
    service: Service,
    served: ServedModel,
    fields: TemplateFields,
    messages: list[ChatRequestMessage],
    kwargs: dict[str, Any],
) -> RenderedPrompt:
    """Render messages with the chat template of the model or of the request. kwargs: variables of the template."""
    if fields.chat_template is not None and not service.config.trust_request_chat_template:
        raise BadRequest(
            "`chat_template` in a request is only allowed when the server runs with --trust-request-chat-template.",
            "chat_template",
        )
    template = served.chat_template()
    conversation = template.conversation([message.model_dump(exclude_unset=True) for message in messages])
    tools = [tool.model_dump(exclude_unset=True) for tool in fields.tools] if fields.tools else None
    check_text_length((conversation.messages, tools, fields.documents, kwargs), service.config.max_text_chars)
    text = template.render(
        conversation,
        add_generation_prompt=fields.add_generation_prompt,
        continue_final_message=fields.continue_final_message,
        tools=tools,
        documents=fields.documents,
        kwargs=kwargs,
        template=fields.chat_template,
    )
    return RenderedPrompt(text=text, role=messages[-1].role, media=conversation.items)


def check_text_length(values: Any, max_chars: int) -> None:
    """Raise `BadRequest` if all strings in nested `values` together have more than `max_chars` characters."""
    count = 0
    remaining = [values]
    while remaining:
        value = remaining.pop()
        if isinstance(value, str):
            count += len(value)
        elif isinstance(value, Mapping):
            remaining.extend(value.values())
        elif isinstance(value, Sequence):
            remaining.extend(value)
    if count > max_chars:
        raise BadRequest(
            f"`messages` and the other inputs of the chat template have {count} characters; at most {max_chars}"
            " are accepted (--max-text-chars).",
            "messages",
        )


def _text_of(message: ChatRequestMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    return "\n".join(part.text or "" for part in message.content or ())
