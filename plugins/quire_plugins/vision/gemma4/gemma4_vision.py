"""Gemma 4 with images of any size (E2B and E4B; in larger models tokens of an image see later ones in some layers)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError
from quire.plugin import Architecture, Context, InputMapper, RMSNorm, WeightsMapper, config_fields as configs, hookimpl
from quire_models.loading import weight_names as names
from quire_plugins.architectures.per_layer import gemma4
from quire_plugins.architectures.per_layer.parts import PerLayerDecoder
from quire_plugins.vision.gemma4.encoder import GridBlock, PooledGridTower

if TYPE_CHECKING:
    from torch import Tensor

    from quire_plugins.vision.gemma4.inputs import PatchProcessor

NAME = "Gemma4ForConditionalGeneration"


def decoder(c: Any) -> PerLayerDecoder:
    """Describes the language model. Raises CheckpointError where it sees images in both directions."""
    if c.text_config.use_bidirectional_attention:
        raise CheckpointError(
            "config.json has use_bidirectional_attention"
            f" {c.text_config.use_bidirectional_attention!r:.40} in `text_config`, which is not supported."
        )
    found = gemma4.decoder(c.text_config)
    return replace(found, tied=c.tie_word_embeddings, media_token=c.text_config.pad_token_id or 0)


def tower(c: Any) -> PooledGridTower:
    """Describes `Gemma4VisionConfig`. Raises CheckpointError without it, or for shared keys and values."""
    v = c.vision_config
    if v is None or v.num_key_value_heads != v.num_attention_heads or v.attention_bias:
        raise CheckpointError(
            "config.json must have a `vision_config` without `attention_bias`, and with as many key-value heads as"
            " heads."
        )
    block = GridBlock(
        heads=v.num_attention_heads,
        head_dim=v.head_dim,
        intermediate_size=v.intermediate_size,
        act=configs.act(v.hidden_activation),
        norm=RMSNorm(v.rms_norm_eps),
        clipped=v.use_clipped_linears,
    )
    return PooledGridTower(
        patch=v.patch_size,
        width=v.hidden_size,
        positions=v.position_embedding_size,
        blocks=(block,) * v.num_hidden_layers,
        theta=v.rope_parameters["rope_theta"],
        pool=v.pooling_kernel_size,
        standardized=v.standardize,
        norm=RMSNorm(v.rms_norm_eps, affine=False),
    )


def _number(tensor: Tensor, _: Any) -> Tensor:
    """A number as [1]."""
    return tensor.reshape(1)


_LIMITS = tuple(f"tower.blocks.*.{end}_{bound}" for end in ("input", "output") for bound in ("min", "max"))

NAMES = (
    gemma4.NAMES
    | names.LANGUAGE_MODEL
    | WeightsMapper(
        (
            ("model.vision_tower.patch_embedder.input_proj", "tower.patches"),
            ("model.vision_tower.patch_embedder.position_embedding_table", "tower.positions"),
            ("model.vision_tower.encoder.layers", "tower.blocks"),
            ("model.vision_tower.std_bias", "tower.std_bias"),
            ("model.vision_tower.std_scale", "tower.std_scale"),
            ("model.embed_vision.embedding_projection", "tower.project"),
        ),
        transforms=tuple((limit, _number) for limit in _LIMITS),
        ignored=("model.audio_tower.*", "model.embed_audio.*"),
    )
)


def weights(c: Any) -> WeightsMapper:
    """Also ignores matrices that blocks with shared keys and values do not need."""
    return NAMES | gemma4.unused_matrices(c.text_config)


def _pictures(context: Context) -> PatchProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.vision.gemma4.inputs import PatchProcessor

    return PatchProcessor(context, parsed(context))


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The model with images, without sound; `architectures.per_layer.gemma4` has the language model alone."""
    yield Architecture(NAME, decoder, weights, tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Images; chat templates write the placeholder."""
    yield InputMapper("gemma4/image", NAME, "image", _pictures, "<|image|>")
