"""Prompts of the Python API as typed dictionaries, under the import path that vLLM has for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

__all__ = ["TextPrompt", "TokensPrompt"]


class TextPrompt(TypedDict):
    """A text, perhaps with media: {modality: an item or a list of items}."""

    prompt: str
    multi_modal_data: NotRequired[Mapping[str, Any]]


class TokensPrompt(TypedDict):
    """Token ids, perhaps with the text that they are of, and media."""

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]
    multi_modal_data: NotRequired[Mapping[str, Any]]
