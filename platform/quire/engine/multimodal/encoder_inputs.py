"""Describes the encoder input of models with cross-attention (`quire_models.parts.cross_attention`) for `ModelInfo`."""

from __future__ import annotations

from collections.abc import Sequence

from quire.errors import ConfigError, PluginError
from quire.types.encoder_input import ENCODER_PROMPT, EncoderInputInfo
from quire_models import EncoderInput
from quire_models.model_part import ModelPart
from quire_models.parts.cross_attention import PADDING_MULTIPLE


def encoder_input_info(
    decoder: ModelPart, modalities: Sequence[str], architecture: str, page_size: int, max_model_len: int
) -> EncoderInputInfo | None:
    """The description of a model's encoder input; None if it has none. modalities: those that the model accepts.

    Raises PluginError unless there is exactly one modality, and ConfigError as `check_encoder_input` does.
    """
    if decoder.encoder_input is None:
        return None
    check_encoder_input(decoder.encoder_input, page_size, max_model_len)
    if len(modalities) != 1:
        raise PluginError(
            f"{architecture} has an encoder input, so it needs input mappers of exactly one modality; there are "
            f"{len(modalities)}."
        )
    source = decoder.encoder_input
    if source.is_text != (modalities[0] == ENCODER_PROMPT):
        raise PluginError(
            f"{architecture} has an input mapper of {modalities[0]}; that of an encoder input that is a text must have"
            f" the modality {ENCODER_PROMPT}, and others must not."
        )
    return EncoderInputInfo(
        modality=modalities[0],
        length=source.length,
        reserved=source.padded_length,
        multiple=PADDING_MULTIPLE if source.is_text else None,
    )


def check_encoder_input(encoder_input: EncoderInput, page_size: int, max_model_len: int) -> None:
    """Raise ConfigError if no prompt can fit the page size or the model length."""
    unit = PADDING_MULTIPLE if encoder_input.is_text else encoder_input.padded_length
    if unit % page_size:
        raise ConfigError(
            f"--page-size {page_size}: prompts of this model begin with a medium of {unit} "
            "positions, which must be a multiple of the page size."
        )
    if max_model_len <= encoder_input.padded_length:
        raise ConfigError(
            f"Prompts of this model begin with a medium of {encoder_input.padded_length} positions, but its sequences "
            f"are limited to {max_model_len}: raise --max-model-len, or the limit of the KV cache."
        )


def max_positions(of_config: int | None, decoder: ModelPart) -> int | None:
    """The longest sequence by the config and by the table of position embeddings, if there is one.

    Positions of an encoder input are added.
    """
    table = None if decoder.positions is None else decoder.positions.count
    lengths = [length for length in (of_config, table) if length is not None]
    source = decoder.encoder_input
    if source is None:
        return min(lengths, default=None)
    if source.is_text:  # the text of the decoder may be as long
        lengths = lengths or [source.length]
    return min(lengths) + source.padded_length if lengths else None
