"""How the chats of a model become prompts: by its templates, or by the library that its tokenizer comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.errors import BadRequest, ConfigError
from quire.text.chat import ChatTemplate
from quire.text.messages import Conversation
from quire.text.renderer import Renderer
from quire.text.tokenizer import EncodesChats, Tokenizer


@dataclass(frozen=True, kw_only=True)
class LibraryChat(ChatTemplate):
    """Chats that a tokenizer's library encodes itself; no template is rendered."""

    library: EncodesChats

    @property
    def usual(self) -> str:
        """The control tokens, by which parsers of tool calls and reasoning recognise a kind of model."""
        return " ".join(self.library.control_tokens)

    @property
    def for_tools(self) -> str:
        """The same."""
        return self.usual

    def check(self) -> None:
        """Nothing can be wrong with it."""

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
        """The prompt's text, with its ids; what templates alone understand raises BadRequest."""
        for name, value in (("documents", documents), ("chat_template_kwargs", kwargs), ("chat_template", template)):
            if value:
                raise BadRequest(f"`{name}` is for chat templates, and this model's chats are not made by one.", name)
        conversation = messages if isinstance(messages, Conversation) else self.conversation(messages)
        return self.library.encode_chat(conversation.messages, tools, continue_final_message)


def choose_chat(
    tokenizer: Tokenizer,
    renderer: Renderer,
    override: str | None = None,
    modalities: tuple[str, ...] = (),
    markers: Mapping[str, str] | None = None,
) -> ChatTemplate:
    """What a model's chats become prompts by. Arguments are those of `ChatTemplate.of`; raises ConfigError."""
    library = tokenizer.encodes_chats
    if library is None:
        return ChatTemplate.of(tokenizer, renderer, override, modalities, markers)
    if override is not None:
        raise ConfigError("--chat-template does not go with --tokenizer-mode mistral, whose library makes the prompts.")
    return LibraryChat({}, tokenizer.special_tokens, renderer, library=library)
