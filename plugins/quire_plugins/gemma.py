"""Gemma 2 and 3: norms on both sides of each branch, and layers that see only their neighbourhood.

Gemma 3 also with pictures, whose tokens see all of their picture.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quire import Architecture, InputMapper, hookimpl
from quire.records import Context
from quire_models import Attention, Block, Decoder, GatedMlp, Norm, Rope, configs, names, with_attention
from quire_models.headless import headless
from quire_plugins import gemma_vision

if TYPE_CHECKING:
    from quire_plugins.gemma_vision_inputs import MapsPictures

SEEING = "Gemma3ForConditionalGeneration"


def gemma2(c: Any) -> Decoder:
    """`Gemma2Config` as parts."""
    return _decoder(c, _norm(c), [Rope.of(c, c.head_dim)] * c.num_hidden_layers)


def gemma3(c: Any) -> Decoder:
    """`Gemma3TextConfig` as parts: each kind of layer has a rotary embedding of its own, queries and keys a norm."""
    ropes = [Rope.of(c, c.head_dim, layer_type) for layer_type in c.layer_types]
    return with_attention(_decoder(c, _norm(c), ropes), qk_norm=_norm(c))


def seeing(c: Any) -> Decoder:
    """The text half of `Gemma3Config`."""
    return replace(gemma3(c.text_config), tied=c.tie_word_embeddings, whole_media=True)


def _norm(c: Any) -> Norm:
    return Norm(c.rms_norm_eps, offset=1.0)  # the checkpoint stores weight - 1


def _decoder(c: Any, norm: Norm, ropes: list[Rope]) -> Decoder:
    attention = Attention(
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        head_dim=c.head_dim,
        qkv_bias=c.attention_bias,
        out_bias=c.attention_bias,
        softcap=c.attn_logit_softcapping,
        scale=c.query_pre_attn_scalar**-0.5,
    )
    block = Block(attention, GatedMlp(c.intermediate_size, configs.act(c.hidden_activation)), norm, norm_out=True)
    return Decoder(
        vocab=c.vocab_size,
        width=c.hidden_size,
        blocks=tuple(
            replace(block, attn=replace(attention, rope=rope, window=configs.window(c, layer)))
            for layer, rope in enumerate(ropes)
        ),
        norm=norm,
        tied=c.tie_word_embeddings,
        embed_scale=c.hidden_size**0.5,
        logit_softcap=c.final_logit_softcapping,
    )


def _pictures(context: Context) -> MapsPictures:
    from quire_plugins.gemma_vision_inputs import MapsPictures
    from quire_plugins.model_config import parsed

    config = parsed(context)
    return MapsPictures(context, config, gemma_vision.tower(config).tokens)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """Two generations, the second with and without pictures, and the forms without a language head."""
    yield Architecture(name="Gemma2ForCausalLM", decoder=gemma2, names=names.LLAMA | names.SANDWICH)
    yield Architecture(name="Gemma3ForCausalLM", decoder=gemma3, names=names.LLAMA | names.SANDWICH)
    yield Architecture(name=SEEING, decoder=seeing, names=gemma_vision.NAMES, tower=gemma_vision.tower)
    yield from headless("Gemma2", gemma2, names.LLAMA | names.SANDWICH)
    yield from headless("Gemma3Text", gemma3, names.LLAMA | names.SANDWICH)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Pictures; templates write the marker."""
    yield InputMapper("gemma3/image", SEEING, "image", _pictures, "<start_of_image>")
