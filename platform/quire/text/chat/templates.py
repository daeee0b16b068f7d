"""Renders conversations of the OpenAI API with the chat templates of a model.

Rendering blocks while a sandbox process works (`quire.text.chat.template_pool`); an event loop calls it in a thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quire.errors import BadRequest, ConfigError
from quire.text.chat.messages import Conversation, Message, check_conversation
from quire.text.chat.template_pool import TemplatePool
from quire.text.tokenizer.files import DEFAULT_TEMPLATE
from quire.text.tokenizer.tokenizer import Tokenizer

MAX_TEMPLATE_CHARS = 1 << 20
TOOL_TEMPLATE = "tool_use"
_END_MARKER = "\ue000continue here\ue000 "
"""Appended to the final message to find its end in the rendered text. If its space is lost, the template strips."""

_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


def read_template(value: str) -> str:
    """The template that `value` names as a file or contains as text. Raises `ConfigError` if it is neither."""
    if "{" not in value and "\n" not in value:
        path = Path(value).expanduser()
        if not path.is_file():
            raise ConfigError(f"--chat-template {value!r} is neither a file nor a template.")
        value = path.read_text(encoding="utf-8")
    elif len(value) < 1024 and Path(value).is_file():
        value = Path(value).read_text(encoding="utf-8")
    return value


@dataclass(frozen=True)
class ChatTemplate:
    """Renders the chat templates of a model.

    templates: by name. special_tokens: texts that templates may use ("bos_token", …). modalities: those the model
    accepts besides text. renderer: may be shared between models. markers: by modality, the placeholder of a medium in a
    text.
    """

    templates: Mapping[str, str]
    special_tokens: Mapping[str, str]
    renderer: TemplatePool
    modalities: tuple[str, ...] = ()
    markers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: Tokenizer,
        renderer: TemplatePool,
        override: str | None = None,
        modalities: tuple[str, ...] = (),
        markers: Mapping[str, str] | None = None,
    ) -> ChatTemplate:
        """The templates of a tokenizer. override: a file, a template, or a name; it becomes the default template."""
        templates = dict(tokenizer.chat_templates)
        if override is not None:
            templates[DEFAULT_TEMPLATE] = templates[override] if override in templates else read_template(override)
        return cls(templates, tokenizer.special_tokens, renderer, modalities, markers or {})

    @property
    def default_template(self) -> str | None:
        """The template for requests that name no other one."""
        return self.templates.get(DEFAULT_TEMPLATE)

    @property
    def tool_template(self) -> str | None:
        """The template for requests with tools that name no other one."""
        return self.templates.get(TOOL_TEMPLATE, self.default_template)

    def check(self) -> None:
        """Compile all templates. Raises `ConfigError`, which names the template that does not compile."""
        for name, template in self.templates.items():
            try:
                self.renderer.check(template)
            except BadRequest as error:
                raise ConfigError(f"The chat template {name!r} cannot be used. {error.message}") from error

    def conversation(self, messages: Any) -> Conversation:
        """Validate and normalize `messages`. Raises `BadRequest`."""
        return check_conversation(messages, self.modalities)

    def render(
        self,
        messages: Any,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        template: str | None = None,
    ) -> str:
        """The prompt text. It contains its special tokens: tokenize it without adding any.

        messages: a list of messages, or a `Conversation`, which may have media. continue_final_message: leave the last
        message open, so that the model continues it. kwargs: further variables for the template. template: a template
        of the request, or the name of one of the model's templates. Raises `BadRequest`.
        """
        if add_generation_prompt and continue_final_message:
            raise BadRequest(
                "`add_generation_prompt` and `continue_final_message` exclude each other.", "continue_final_message"
            )
        source = self._choose(template, with_tools=bool(tools))
        conversation = messages if isinstance(messages, Conversation) else self._text_only(messages)
        chat = _add_marker(conversation.messages) if continue_final_message else list(conversation.messages)
        text = self.renderer.render(
            source,
            {
                **self.special_tokens,
                **_extra(kwargs),
                "messages": chat,
                "tools": _mappings("tools", tools),
                "documents": _mappings("documents", documents),
                "add_generation_prompt": add_generation_prompt,
            },
            self.markers,
        )
        return _cut_at_marker(text, _final_text(conversation.messages)) if continue_final_message else text

    def _text_only(self, messages: Any) -> Conversation:
        """Parse plain messages. Raises `BadRequest` if they have media, which would be dropped silently otherwise."""
        conversation = self.conversation(messages)
        if conversation.media:
            raise BadRequest(
                f"Messages with {conversation.media[0].modality} cannot be used here; give media beside a prompt.",
                "messages",
            )
        return conversation

    def _choose(self, template: str | None, with_tools: bool) -> str:
        if template is not None:
            if not isinstance(template, str) or len(template) > MAX_TEMPLATE_CHARS:
                raise BadRequest(
                    f"`chat_template` must be a string of at most {MAX_TEMPLATE_CHARS} characters.", "chat_template"
                )
            return self.templates.get(template, template)
        if with_tools and TOOL_TEMPLATE in self.templates:
            return self.templates[TOOL_TEMPLATE]
        if DEFAULT_TEMPLATE in self.templates:
            return self.templates[DEFAULT_TEMPLATE]
        if self.templates:
            names = ", ".join(sorted(self.templates))
            raise BadRequest(
                f"This model has no default chat template; `chat_template` may name one of {names}.", "messages"
            )
        raise BadRequest(
            "This model has no chat template; start it with --chat-template, or use completions instead of chat.",
            "messages",
        )


def _extra(kwargs: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if kwargs is None:
        return {}
    if not isinstance(kwargs, Mapping) or any(not isinstance(name, str) for name in kwargs):
        raise BadRequest("`chat_template_kwargs` must be an object.", "chat_template_kwargs")
    if taken := sorted(_RESERVED & set(kwargs)):
        raise BadRequest(
            f"`chat_template_kwargs` cannot set {', '.join(taken)}: there are fields for that.", "chat_template_kwargs"
        )
    return kwargs


def _mappings(param: str, value: Any) -> list[Mapping[str, Any]] | None:
    if value is None:
        return None
    if not isinstance(value, Sequence) or any(not isinstance(item, Mapping) for item in value):
        raise BadRequest(f"`{param}` must be a list of objects.", param)
    return list(value)


def _final_text(messages: Sequence[Message]) -> str:
    """The text that the model continues: the last text part of the last message."""
    content = messages[-1].get("content")
    if isinstance(content, list):
        content = next((part["text"] for part in reversed(content) if part.get("type") == "text"), None)
    if not isinstance(content, str):
        raise BadRequest("`continue_final_message` needs a last message with text.", "continue_final_message")
    return content


def _add_marker(messages: Sequence[Message]) -> list[Message]:
    """The messages with the end marker appended to the last text."""
    final = json.loads(json.dumps(messages[-1]))
    text = _final_text([final]) + _END_MARKER
    if isinstance(final["content"], list):
        part = next(part for part in reversed(final["content"]) if part.get("type") == "text")
        part["text"] = text
    else:
        final["content"] = text
    return [*messages[:-1], final]


def _cut_at_marker(rendered: str, final: str) -> str:
    """The rendered text before the end marker, without trailing spaces if the template strips messages."""
    at = rendered.rfind(_END_MARKER.strip())
    if at < 0 or final.strip() not in rendered:
        raise BadRequest(
            "The final message cannot be continued: the chat template does not render it as it is.",
            "continue_final_message",
        )
    return rendered[:at] if rendered.startswith(_END_MARKER, at) else rendered[:at].rstrip()
