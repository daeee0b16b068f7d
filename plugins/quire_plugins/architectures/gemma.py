"""Gemma 1, 2 and 3: from 2 on norms before and after each branch, and layers with sliding-window attention.

Gemma 3 also with images, whose tokens attend to each other in both directions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quire import Architecture, InputMapper, hookimpl
from quire.records import Context
from quire_models import Attention, Block, Decoder, GatedMlp, RMSNorm, Rope, with_attention, with_blocks
from quire_models.loading import config_fields as configs, weight_names as names
from quire_models.loading.headless import headless
from quire_plugins.architectures import llama
from quire_plugins.vision import gemma as gemma_vision

if TYPE_CHECKING:
    from quire_plugins.vision.gemma_inputs import GemmaImageProcessor

MULTIMODAL = "Gemma3ForConditionalGeneration"


def gemma1(c: Any) -> Decoder:
    norm = _norm(c)
    scaled = replace(llama.decoder(c), norm=norm, tied=c.tie_word_embeddings, embed_scale=c.hidden_size**0.5)
    return with_blocks(scaled, lambda _, block: replace(block, norm=norm))


def gemma2(c: Any) -> Decoder:
    return _decoder(c, _norm(c), [Rope.from_config(c, c.head_dim)] * c.num_hidden_layers)


def vault(c: Any) -> Decoder:
    """Describes `VaultGemmaConfig`: Gemma 2 without the norms after each branch."""
    return with_blocks(gemma2(c), lambda _, block: replace(block, norm_out=False))


def gemma3(c: Any) -> Decoder:
    """Describes `Gemma3TextConfig`: each layer type has its own rotary embedding; queries and keys are normalized."""
    ropes = [Rope.from_config(c, c.head_dim, layer_type) for layer_type in c.layer_types]
    return with_attention(_decoder(c, _norm(c), ropes), qk_norm=_norm(c))


def multimodal(c: Any) -> Decoder:
    """Describes the language model of `Gemma3Config`."""
    return replace(gemma3(c.text_config), tied=c.tie_word_embeddings, bidirectional_media=True)


def _norm(c: Any) -> RMSNorm:
    return RMSNorm(c.rms_norm_eps, offset=1.0)  # the checkpoint stores weight - 1


def _decoder(c: Any, norm: RMSNorm, ropes: list[Rope]) -> Decoder:
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


def _pictures(context: Context) -> GemmaImageProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.vision.gemma_inputs import GemmaImageProcessor

    config = parsed(context)
    return GemmaImageProcessor(context, config, gemma_vision.tower(config).tokens)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """Gemma 1 and 2, VaultGemma, Gemma 3 with and without images, and the classes without a language head."""
    yield Architecture(name="GemmaForCausalLM", decoder=gemma1, names=names.LLAMA)
    yield Architecture(name="Gemma2ForCausalLM", decoder=gemma2, names=names.LLAMA | names.PRE_AND_POST_NORM)
    yield Architecture(name="VaultGemmaForCausalLM", decoder=vault, names=names.LLAMA | names.PRE_AND_POST_NORM)
    yield Architecture(name="Gemma3ForCausalLM", decoder=gemma3, names=names.LLAMA | names.PRE_AND_POST_NORM)
    yield Architecture(name=MULTIMODAL, decoder=multimodal, names=gemma_vision.NAMES, tower=gemma_vision.tower)
    yield from headless("Gemma", gemma1, names.LLAMA)
    yield from headless("Gemma2", gemma2, names.LLAMA | names.PRE_AND_POST_NORM)
    yield from headless("Gemma3Text", gemma3, names.LLAMA | names.PRE_AND_POST_NORM)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Images; chat templates write the placeholder."""
    yield InputMapper("gemma3/image", MULTIMODAL, "image", _pictures, "<start_of_image>")
