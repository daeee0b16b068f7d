"""Multi-token prediction: the module that predicts a further token, from the model's own checkpoint.

DeepSeek-V3 (arXiv 2412.19437) and GLM-4.5 store it as one more layer, N = num_hidden_layers:

    model.layers.N.enorm.weight, hnorm.weight         norms of the embedding and of the feature
    model.layers.N.eh_proj.weight                     [width, 2 width], of both
    model.layers.N.…                                  a decoder layer like the last one
    model.layers.N.shared_head.norm.weight            final norm
    model.layers.N.shared_head.head.weight            [vocab, width]; without it, the model's LM head is used
    model.layers.N.embed_tokens.weight                [vocab, width]; without it, the model's table is used

Further such layers (num_nextn_predict_layers above 1) are not used: the first drafts all tokens, each from its own
feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quire.errors import ConfigError
from quire.plugin import DrafterContext, Part, WeightsMapper
from quire_drafters.feature_model import FeatureModel, load_model
from quire_drafters.head_files import FLAG, CheckedFiles, HeadFiles, as_config_error
from quire_models.modules.builder import ModuleBuilder
from quire_models.parts.state import kv_shape, state_shape

NAMES = WeightsMapper(
    (
        ("enorm", "enorm"),
        ("embed_tokens", "embed"),
        ("shared_head.norm", "head_norm"),
        ("shared_head.head", "draft_head"),
    )
)


@dataclass(frozen=True)
class MtpParts:
    """block: a part like the model's last block. norm: like its final norm. own_vocab: rows of its embedding table,
    None without one. own_head: whether it has an LM head.
    """

    block: Any
    norm: Part
    width: int
    vocab: int
    own_vocab: int | None
    own_head: bool


class MtpModel(FeatureModel):
    """One layer of multi-token prediction."""

    def __init__(self, parts: MtpParts, builder: ModuleBuilder, target: Any) -> None:
        super().__init__(parts.width, builder, target, parts.own_vocab)
        self.enorm, self.hnorm = (parts.norm.build(parts.width, builder) for _ in range(2))
        self.eh_proj = builder.projection(2 * parts.width, parts.width)
        self.blocks = nn.ModuleList([parts.block.build(parts.width, builder.at_layer(0))])
        self.head_norm = parts.norm.build(parts.width, builder)
        self.draft_head = builder.projection(parts.width, parts.vocab) if parts.own_head else None
        self.kv_shapes = (kv_shape(parts.block),)

    def inputs(self, embeddings: Tensor, features: Tensor) -> Tensor:
        return self.eh_proj.multiply(torch.cat([self.enorm(embeddings), self.hnorm(features)], -1))

    def before_head(self, features: Tensor) -> Tensor:
        normed: Tensor = self.head_norm(features)
        return normed

    def logits(self, features: Tensor) -> Tensor:
        if self.draft_head is None:
            return super().logits(features)
        return self.draft_head.multiply(self.before_head(features), True)

    def argmax(self, features: Tensor) -> list[int]:
        found: list[int] = self.ops.argmax(self.logits(features)).tolist()
        return found


def load_mtp(context: DrafterContext) -> MtpModel:
    """The module in the model's own folder. Raises ConfigError."""
    target = context.target
    decoder = target.decoder
    count, block = len(decoder.blocks), decoder.blocks[-1] if decoder.blocks else None
    if block is None or decoder.norm is None or state_shape(block) is not None:
        raise ConfigError(f"`method` of {FLAG}: {context.model} has no layers that can predict further tokens.")
    files = HeadFiles({"model": str(Path(target.info.folder))})
    prefix = f"model.layers.{count}."
    tensors = CheckedFiles(files, lambda name: _renamed(name, prefix))
    if "eh_proj.weight" not in tensors:
        raise ConfigError(
            f"`method` of {FLAG}: {files.folder} has no layer that predicts further tokens; it lacks the tensor "
            f"'{prefix}eh_proj.weight'."
        )
    parts = MtpParts(
        block=block,
        norm=decoder.norm,
        width=decoder.width,
        vocab=decoder.vocab,
        own_vocab=decoder.vocab if "embed_tokens.weight" in tensors else None,
        own_head="shared_head.head.weight" in tensors,
    )
    builder = ModuleBuilder(target.ops, target.dtype, target.device, keep_weights=False)
    names = replace(target.names, ignored=()) | NAMES
    with as_config_error():
        return load_model(lambda on: MtpModel(parts, on, target), builder, decoder, names, tensors)


_OWN: Sequence[str] = ("enorm.", "hnorm.", "eh_proj.", "embed_tokens.", "shared_head.")


def _renamed(name: str, prefix: str) -> str | None:
    """Tensors of the layer are those of layer 0 of a model, and the module's own; the others are left out."""
    if not name.startswith(prefix) or name.endswith("rotary_emb.inv_freq"):
        return None
    rest = name.removeprefix(prefix)
    return rest if rest.startswith(tuple(_OWN)) else f"model.layers.0.{rest}"
