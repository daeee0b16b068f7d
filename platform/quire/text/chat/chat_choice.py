"""Chooses how the chats of a model become prompts: with its chat templates, or with its tokenizer library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.errors import BadRequest, ConfigError
from quire.text.chat.messages import Conversation
from quire.text.chat.template_pool import TemplatePool
from quire.text.chat.templates import ChatTemplate
from quire.text.tokenizer.tokenizer import ChatTokenizerBackend, Tokenizer


@dataclass(frozen=True, kw_only=True)
class BackendChat(ChatTemplate):
    """Encodes chats with the tokenizer library instead of a template."""

    backend: ChatTokenizerBackend

    @property
    def default_template(self) -> str:
        """The control tokens as a text, from which tool and reasoning parsers recognize a model family."""
        return " ".join(self.backend.control_tokens)

    @property
    def tool_template(self) -> str:
        return self.default_template

    def check(self) -> None:
        """There is no template to check."""

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
        """The prompt text, which carries its ids. Raises BadRequest for arguments that only templates support."""
        for name, value in (("documents", documents), ("chat_template_kwargs", kwargs), ("chat_template", template)):
            if value:
                raise BadRequest(f"`{name}` is for chat templates, and this model encodes chats without one.", name)
        conversation = messages if isinstance(messages, Conversation) else self.conversation(messages)
        return self.backend.encode_chat(conversation.messages, tools, continue_final_message)


def choose_chat(
    tokenizer: Tokenizer,
    renderer: TemplatePool,
    override: str | None = None,
    modalities: tuple[str, ...] = (),
    markers: Mapping[str, str] | None = None,
) -> ChatTemplate:
    """The chat encoder of a model. Arguments are those of `ChatTemplate.from_tokenizer`. Raises ConfigError."""
    backend = tokenizer.chat_backend
    if backend is None:
        return ChatTemplate.from_tokenizer(tokenizer, renderer, override, modalities, markers)
    if override is not None:
        raise ConfigError(
            "--chat-template cannot be combined with --tokenizer-mode mistral, which encodes chats without a template."
        )
    return BackendChat({}, tokenizer.special_tokens, renderer, backend=backend)
