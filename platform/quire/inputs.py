"""Prompts of the Python API as typed dictionaries, with vLLM's import path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

__all__ = ["TextPrompt", "TokensPrompt"]


class TextPrompt(TypedDict):
    """A text, optionally with media: {modality: an item or a list of items}."""

    prompt: str
    multi_modal_data: NotRequired[Mapping[str, Any]]


class TokensPrompt(TypedDict):
    """Token ids, optionally with their text and media."""

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]
    multi_modal_data: NotRequired[Mapping[str, Any]]
