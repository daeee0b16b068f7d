"""The media item that every prompt of an encoder-decoder model begins with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderInputInfo:
    """Every prompt of the model begins with exactly one item of this modality.

    length: its positions. reserved: the positions before the text of the prompt, `length` rounded up; those between the
    two are never computed.
    """

    modality: str
    length: int
    reserved: int
