"""The description of a loaded model that the engine process sends to the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quire.types.encoder_input import EncoderInputInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelInfo:
    """A loaded model.

    tasks: those that it can do, of "generate", "transcribe", "translate" and `quire.params.pooling.POOLING_TASKS`.
    dimensions: how many of the `embedding_size` numbers a request may ask for: None = no fewer, () = any number, else
    one of these. labels: names of the classes, in order. token_types: whether tokens of a pair of texts have types.
    position_axes: axes of the rotary positions of media. encoder_input: the item that prompts begin with, if any.
    max_logprobs: log-probabilities per position that a request may ask for, -1 = any number.
    """

    name: str
    aliases: tuple[str, ...]
    root: str
    folder: str
    architecture: str
    dtype: str
    device: str
    max_model_len: int
    vocab_size: int
    eos_ids: tuple[int, ...]
    num_pages: int
    page_size: int
    num_parameters: int
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    modalities: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ("generate",)
    embedding_size: int | None = None
    dimensions: tuple[int, ...] | None = None
    labels: tuple[str, ...] = ()
    token_types: bool = False
    position_axes: int = 1
    encoder_input: EncoderInputInfo | None = None
    max_logprobs: int = 20
