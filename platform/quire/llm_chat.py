"""What `LLM` does with conversations: checked, rendered by the chat template, tokenized."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.llm_requests import Requests
from quire.text.arguments import as_conversations
from quire.text.chat import read_template
from quire.text.chat_choice import choose_chat
from quire.text.renderer import Renderer
from quire.text.tokenizer import Tokenizer
from quire.types import Prompt


class ChatPrompts:
    """Conversations as prompts of one model."""

    def __init__(
        self,
        requests: Requests,
        tokenizer: Tokenizer,
        renderer: Renderer,
        template: str | None,
        markers: Mapping[str, str],
    ) -> None:
        """template: in place of the model's usual one. markers: by modality, what stands for a medium in a text."""
        self._requests, self._known = requests, tokenizer.chat_templates
        self._chat = choose_chat(tokenizer, renderer, template, requests.modalities, markers)

    def prompts(self, messages: Any, template: str | None, **rendering: Any) -> list[Prompt]:
        """Of one conversation or many. template, rendering: see `LLM.chat` and `ChatTemplate.render`."""
        if template is not None and template not in self._known:
            template = read_template(template)
        made = []
        for conversation in map(self._chat.conversation, as_conversations(messages)):
            text = self._chat.render(conversation, template=template, **rendering)
            value = {"prompt": text, "multi_modal_data": conversation.items}
            made.append(self._requests.prompt(value, special=False))
        return made
