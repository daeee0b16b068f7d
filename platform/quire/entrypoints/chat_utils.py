"""`load_chat_template` under vLLM's import path."""

from __future__ import annotations

from os import PathLike

from quire.text.chat.templates import read_template

__all__ = ["load_chat_template"]


def load_chat_template(chat_template: str | PathLike[str] | None) -> str | None:
    """The template that a file contains, or `chat_template` itself. Raises `ConfigError` for other text."""
    return None if chat_template is None else read_template(str(chat_template))
