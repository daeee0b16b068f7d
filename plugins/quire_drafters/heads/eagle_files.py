"""Reads checkpoints of EAGLE heads: the published ones, and those with vLLM's config.

fc.weight                       [width, 2 width], for EAGLE 3 [width, 3 model widths]; fc.bias
layers.0.…, midlayer.…          the decoder block, with Llama's names; hidden_norm.weight (EAGLE 3)
norm.weight, lm_head.weight     EAGLE 3: final norm, [draft_vocab_size, width]
d2t, t2d                        EAGLE 3: int64 and bool, which tokens the rows of its LM head are
embed_tokens.weight             [vocab, width]; without it, the model's table is used
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from quire.errors import ConfigError
from quire.plugin import Block, DrafterContext, GatedMlp, RMSNorm, Rope, WeightsMapper, config_fields, weight_names
from quire_drafters.heads.eagle_models import Eagle3Model, EagleModel, EagleParts
from quire_drafters.heads.feature_model import FeatureModel, load_model
from quire_drafters.heads.head_files import CheckedFiles, HeadFiles, as_config_error, find_heads
from quire_models import Attention
from quire_models.modules.builder import ModuleBuilder

MAX_BLOCKS = 8
NAMES = weight_names.LLAMA | WeightsMapper(
    (
        ("embed_tokens", "embed"),
        ("norm", "head_norm"),
        ("lm_head", "draft_head"),
    ),
    ignored=("d2t", "t2d"),
)
_EAGLE3_KEYS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")


def load_eagle(context: DrafterContext) -> FeatureModel:
    """The draft model in the folder that the settings name. Raises ConfigError."""
    files = HeadFiles(find_heads(context))
    nested = files.config.get("model")
    config = dict(nested if isinstance(nested, Mapping) else files.config)
    tensors = CheckedFiles(files, lambda name: name.removeprefix("model."))
    is_eagle3 = any(".hidden_norm." in f".{name}" for name in tensors)
    parts = _parts(files, tensors, config, context, is_eagle3)
    target = context.target
    builder = ModuleBuilder(target.ops, target.dtype, target.device, keep_weights=False)
    offsets = _offsets(tensors, parts, context.target.decoder.vocab) if is_eagle3 else None

    def build(on: ModuleBuilder) -> FeatureModel:
        return Eagle3Model(parts, on, target, offsets) if is_eagle3 else EagleModel(parts, on, target)

    first = ("midlayer", "blocks.0") if _first(tensors) == "midlayer" else ("layers", "blocks")
    names = NAMES | WeightsMapper((first,), ignored=() if is_eagle3 else ("lm_head.weight",))
    with as_config_error():
        return load_model(build, builder, target.decoder, names, tensors)


def _parts(
    files: HeadFiles, tensors: CheckedFiles, config: dict[str, Any], context: DrafterContext, is_eagle3: bool
) -> EagleParts:
    width, target = config.get("hidden_size"), context.target
    if not isinstance(width, int):
        raise ConfigError(f"{files.folder}: config.json does not say `hidden_size`.")
    own = "embed_tokens.weight" in tensors
    if not (is_eagle3 and own):
        files.check_size("hidden_size", width, target.decoder.width, f"the model {context.model}")
    files.check_size("vocab_size", config.get("vocab_size"), context.target.decoder.vocab, f"the model {context.model}")
    try:
        block = _block(tensors, SimpleNamespace(**config), width, is_eagle3)
    except (AttributeError, TypeError, ValueError, KeyError, ZeroDivisionError) as error:
        raise ConfigError(f"{files.folder}: config.json does not describe a decoder block: {error!r:.200}") from error
    count = config.get("num_hidden_layers", 1)
    if not 1 <= count <= (1 if is_eagle3 else MAX_BLOCKS):
        most = 1 if is_eagle3 else MAX_BLOCKS
        raise ConfigError(f"{files.folder}: `num_hidden_layers` is {count}; it must be from 1 to {most}.")
    return EagleParts(
        block=block,
        width=width,
        num_blocks=count,
        fc_bias="fc.bias" in tensors,
        normed=f"{_first(tensors)}.input_layernorm.weight" in tensors,
        own_vocab=context.target.decoder.vocab if own else None,
        before_blocks=_before_blocks(files, config, len(target.decoder.blocks)) if is_eagle3 else (),
        draft_vocab=_draft_vocab(files, tensors, context.target.decoder.vocab) if is_eagle3 else 0,
        norm_first=bool(config.get("norm_before_residual")),
        target_width=target.decoder.width,
    )


def _block(tensors: CheckedFiles, c: Any, width: int, is_eagle3: bool) -> Block:
    """The decoder block; which biases and norms it has, the tensors say."""
    first = _first(tensors)
    norm = RMSNorm(float(config_fields.optional(c, "rms_norm_eps", 1e-6)))
    with as_config_error():
        head_dim = config_fields.head_dim(c)
        attention = Attention(
            heads=c.num_attention_heads,
            kv_heads=config_fields.kv_heads(c),
            head_dim=head_dim,
            rope=Rope.from_config(c, head_dim),
            qkv_bias=f"{first}.self_attn.q_proj.bias" in tensors,
            out_bias=f"{first}.self_attn.o_proj.bias" in tensors,
            qk_norm=norm if f"{first}.self_attn.q_norm.weight" in tensors else None,
            out_width=width if is_eagle3 else None,
        )
        act = config_fields.act(config_fields.optional(c, "hidden_act", "silu"))
    return Block(attention, GatedMlp(c.intermediate_size, act), norm)


def _first(tensors: CheckedFiles) -> str:
    """The name of the first block."""
    return "midlayer" if any(name.startswith("midlayer.") for name in tensors) else "layers.0"


def _before_blocks(files: HeadFiles, config: Mapping[str, Any], num_blocks: int) -> tuple[int, ...]:
    """The blocks whose inputs EAGLE 3 reads: those of the config, or as in the paper's code."""
    nested = config.get("eagle_config")
    levels = (nested, config) if isinstance(nested, Mapping) else (config,)
    given = next((level[key] for level in levels for key in _EAGLE3_KEYS if level.get(key) is not None), None)
    found = (2, num_blocks // 2, num_blocks - 3) if given is None else given
    is_list = isinstance(found, list | tuple) and 1 <= len(found) <= 8
    if not is_list or not all(isinstance(each, int) and 0 <= each < num_blocks for each in found):
        raise ConfigError(
            f"{files.folder}: EAGLE 3 reads the inputs of the blocks {found!r:.60}; the model has {num_blocks}."
        )
    return tuple(found)


def _draft_vocab(files: HeadFiles, tensors: CheckedFiles, vocab: int) -> int:
    shape = tensors.get("lm_head.weight", ())
    if len(shape) != 2 or not 1 <= shape[0] <= vocab:
        raise ConfigError(
            f"{files.folder}: tensor 'lm_head.weight' must have from 1 to {vocab} rows; its shape is {list(shape)}."
        )
    return shape[0]


def _offsets(tensors: CheckedFiles, parts: EagleParts, vocab: int) -> Tensor | None:
    """d2t: int64 [draft_vocab]; row i of the LM head is the token i + d2t[i]."""
    folder = tensors.folder
    if "d2t" not in tensors:
        if parts.draft_vocab != vocab:
            raise ConfigError(f"{folder} lacks the tensor 'd2t', which says what tokens 'lm_head.weight' predicts.")
        return None
    with as_config_error():
        offsets = tensors.read_any("d2t")
    if offsets.dtype not in (torch.int64, torch.int32) or tuple(offsets.shape) != (parts.draft_vocab,):
        raise ConfigError(f"{folder}: tensor 'd2t' must hold {parts.draft_vocab} integers.")
    ids = torch.arange(parts.draft_vocab) + offsets
    if not 0 <= int(ids.min()) <= int(ids.max()) < vocab:
        raise ConfigError(f"{folder}: tensor 'd2t' names tokens outside 0 … {vocab - 1}.")
    return offsets
