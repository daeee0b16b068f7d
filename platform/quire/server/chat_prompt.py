"""From a chat request to the text that the model continues. It blocks: callers use a worker thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quire.errors import BadRequest
from quire.server.models import Served
from quire.server.schema_requests import ChatRequest, Message, TemplateFields
from quire.server.service import Service

NO_REASONING = ("enable_thinking", "thinking")
"""Variables by which templates are told not to let the model reason."""


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """text: the prompt. media: {modality: items} that its markers stand for. role: whose message comes next.
    lead: text that the answer repeats first."""

    text: str
    role: str
    media: Mapping[str, Any] = field(default_factory=dict)
    lead: str = ""


def render(service: Service, served: Served, fields: ChatRequest) -> Rendered:
    """The prompt of a chat completion."""
    kwargs = dict(fields.chat_template_kwargs or {})
    if fields.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", fields.reasoning_effort)
    if fields.reasoning_effort == "none":
        for name in NO_REASONING:
            kwargs.setdefault(name, False)
    last = fields.messages[-1]
    role = served.response_role if fields.add_generation_prompt else last.role
    lead = _text_of(last) if fields.echo and last.role == role else ""
    if service.config.exclude_tools_when_tool_choice_none and fields.tool_choice == "none":
        fields = fields.model_copy(update={"tools": None})
    return replace(render_template(service, served, fields, fields.messages, kwargs), role=role, lead=lead)


def render_template(
    service: Service, served: Served, fields: TemplateFields, messages: list[Message], kwargs: dict[str, Any]
) -> Rendered:
    """The template's text for these messages, and their media."""
    if fields.chat_template is not None and not service.config.trust_request_chat_template:
        raise BadRequest(
            "`chat_template` in a request is only allowed when the server runs with --trust-request-chat-template.",
            "chat_template",
        )
    template = served.chat_template()
    conversation = template.conversation([message.model_dump(exclude_unset=True) for message in messages])
    tools = [tool.model_dump(exclude_unset=True) for tool in fields.tools] if fields.tools else None
    check_chars((conversation.messages, tools, fields.documents, kwargs), service.config.max_text_chars)
    text = template.render(
        conversation,
        add_generation_prompt=fields.add_generation_prompt,
        continue_final_message=fields.continue_final_message,
        tools=tools,
        documents=fields.documents,
        kwargs=kwargs,
        template=fields.chat_template,
    )
    return Rendered(text=text, role=messages[-1].role, media=conversation.items)


def check_chars(given: Any, most: int) -> None:
    """Refuse more text than a prompt may have, wherever in `given` it is; media are not among it."""
    count = 0
    left = [given]
    while left:
        value = left.pop()
        if isinstance(value, str):
            count += len(value)
        elif isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, Sequence):
            left.extend(value)
    if count > most:
        raise BadRequest(
            f"`messages` and what else the chat template gets have {count} characters; at most {most} are accepted"
            " (--max-text-chars).",
            "messages",
        )


def _text_of(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    return "\n".join(part.text or "" for part in message.content or ())
