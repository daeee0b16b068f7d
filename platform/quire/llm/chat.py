"""Turns the conversations of `LLM.chat` into prompts: checks them, renders the chat template, tokenizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.llm.arguments import as_conversations
from quire.llm.requests import OfflineRequests
from quire.text.chat.chat_choice import choose_chat
from quire.text.chat.template_pool import TemplatePool
from quire.text.chat.templates import read_template
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import Prompt


class ChatPrompts:
    """Builds prompts from conversations, for one model.

    template: used instead of the model's default template. markers: by modality, the placeholder of a medium in a text.
    """

    def __init__(
        self,
        requests: OfflineRequests,
        tokenizer: Tokenizer,
        renderer: TemplatePool,
        template: str | None,
        markers: Mapping[str, str],
    ) -> None:
        self._requests, self._known = requests, tokenizer.chat_templates
        self._chat = choose_chat(tokenizer, renderer, template, requests.modalities, markers)

    def prompts(self, messages: Any, template: str | None, **rendering: Any) -> list[Prompt]:
        """The prompts of one conversation or many. template, rendering: as for `LLM.chat`."""
        if template is not None and template not in self._known:
            template = read_template(template)
        prompts = []
        for conversation in map(self._chat.conversation, as_conversations(messages)):
            text = self._chat.render(conversation, template=template, **rendering)
            value = {"prompt": text, "multi_modal_data": conversation.items}
            prompts.append(self._requests.prompt(value, special=False))
        return prompts
