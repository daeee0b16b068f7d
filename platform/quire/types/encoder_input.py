"""What every prompt of an encoder-decoder model begins with: a media item, or the text of the prompt itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.types.request import Media

ENCODER_PROMPT = "encoder_prompt"
"""The modality of an encoder input that is a text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderInputInfo:
    """Every prompt of the model begins with exactly one item of this modality.

    length: its positions, of a text the largest number. reserved: the positions before the text of the decoder,
    `length` rounded up; those between the two are never computed. multiple: a text has any length up to `length`, and
    its positions are rounded up to a multiple of this number; None: all items have `length` positions.
    """

    modality: str
    length: int
    reserved: int
    multiple: int | None = None

    def reserved_for(self, length: int) -> int:
        """Positions before the text of the decoder, for an item of this length."""
        return self.reserved if self.multiple is None else -(-length // self.multiple) * self.multiple


def unused_positions(source: EncoderInputInfo | None, media: Sequence[Media]) -> int:
    """Positions of the longest encoder input that a prompt's own does not take: they add none for the decoder."""
    return source.reserved - source.reserved_for(media[0].length) if source is not None and media else 0
