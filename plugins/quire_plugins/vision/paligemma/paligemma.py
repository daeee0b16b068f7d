"""PaliGemma 1 and 2: images and a text, whose tokens all attend to each other; then the answer, one token at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quire.plugin import (
    Architecture,
    Context,
    Decoder,
    InputMapper,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    weight_names as names,
)
from quire_plugins.architectures import gemma
from quire_plugins.vision import clip
from quire_plugins.vision.shuffled.shuffle import ShuffledTower

if TYPE_CHECKING:
    from quire_plugins.vision.paligemma.inputs import PrefixProcessor

NAME = "PaliGemmaForConditionalGeneration"

DECODERS = {"gemma": gemma.gemma1, "gemma2": gemma.gemma2}
"""By the `model_type` of the language model."""

_TOWER = clip.names("vision_tower", "tower.vision", normed=True) | WeightsMapper(
    (("multi_modal_projector.linear", "tower.project"),)
)


def decoder(c: Any) -> Decoder:
    """Describes the language model. Raises CheckpointError for another than Gemma 1 and 2."""
    text = c.text_config
    configs.check_model_type("language model", text, *DECODERS)
    return replace(DECODERS[text.model_type](text), tied=c.tie_word_embeddings, bidirectional_media=True)


def tower(c: Any) -> ShuffledTower:
    """Describes the encoder, and the matrix to the width of the language model."""
    vision = clip.encoder(c.vision_config, normed=True, kinds=(clip.SIGLIP,))
    return ShuffledTower(vision=vision, merge=1, bias=True)


def weights(c: Any) -> WeightsMapper:
    """Names of the tensors; Gemma 2 has norms before and after each branch."""
    text = names.LLAMA | names.PRE_AND_POST_NORM if c.text_config.model_type == "gemma2" else names.LLAMA
    return text.under("language_model") | names.LANGUAGE_MODEL | _TOWER.and_under("model")


def _pictures(context: Context) -> PrefixProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.vision.paligemma.inputs import PrefixProcessor

    config = parsed(context)
    return PrefixProcessor(context, config, tower(config).tokens)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`PaliGemmaForConditionalGeneration`, of both generations."""
    yield Architecture(NAME, decoder, weights, tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Images; one stands in each prompt."""
    yield InputMapper("paligemma/image", NAME, "image", _pictures, "<image>")
