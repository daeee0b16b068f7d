"""The messages of a conversation, and the requests that continue it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.commands.chat.pictures import content_part


class TerminalConversation:
    """Messages, model and settings. Text is sent with the pictures that were attached before it."""

    def __init__(self, model: str, settings: Mapping[str, Any], system: str | None = None) -> None:
        """settings: fields of every request."""
        self.model, self.system = model, system
        self.pictures: list[dict[str, Any]] = []
        self._settings, self._messages = settings, list[dict[str, Any]]()
        self._sent: list[dict[str, Any]] = []

    def __len__(self) -> int:
        """Number of messages, without the system message."""
        return len(self._messages)

    def attach(self, picture: str) -> None:
        """Attach a picture, a path or a URL, to the next message. Raises ConfigError for a file that is none."""
        self.pictures.append(content_part(picture))

    def ask(self, text: str) -> dict[str, Any]:
        """Add a message, and return the body of the request for its answer."""
        content = [*self.pictures, {"type": "text", "text": text}] if self.pictures else text
        self._sent, self.pictures = self.pictures, []
        self._messages.append({"role": "user", "content": content})
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {"model": self.model, **self._settings, "messages": [*system, *self._messages]}

    def answered(self, text: str) -> None:
        """Add the answer to the last message."""
        self._messages.append({"role": "assistant", "content": text})

    def take_back(self) -> None:
        """Remove a message whose request failed; its pictures wait for the next one."""
        self._messages.pop()
        self.pictures = self._sent

    def reset(self) -> None:
        """Remove all messages and pictures; the system message stays."""
        self._messages, self.pictures = [], []
