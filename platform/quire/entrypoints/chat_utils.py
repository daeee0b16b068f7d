"""`load_chat_template` under the import path that vLLM has for it."""

from __future__ import annotations

from os import PathLike

from quire.text.chat import read_template

__all__ = ["load_chat_template"]


def load_chat_template(chat_template: str | PathLike[str] | None) -> str | None:
    """A template given as a file or as itself; `ConfigError` if it is neither. None stays None."""
    return None if chat_template is None else read_template(str(chat_template))
