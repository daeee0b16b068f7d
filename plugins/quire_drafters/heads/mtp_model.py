"""Multi-token prediction: the module that predicts a further token, from the model's own checkpoint.

DeepSeek-V3 (arXiv 2412.19437) and GLM-4.5 store it as one more layer, N = num_hidden_layers; Qwen3-Next as `mtp`:

    model.layers.N.enorm      mtp.pre_fc_norm_embedding   norm of the embedding
    model.layers.N.hnorm      mtp.pre_fc_norm_hidden      norm of the feature
    model.layers.N.eh_proj    mtp.fc                      [width, 2 width], of both
    model.layers.N.…          mtp.layers.0.…              a decoder layer like the last one that attends
    model.layers.N.shared_head.norm    mtp.norm           final norm; of Qwen3-Next, what it returns is the next feature
    model.layers.N.shared_head.head                       [vocab, width]; without it, the model's LM head is used
    model.layers.N.embed_tokens                           [vocab, width]; without it, the model's table is used

Further such layers (num_nextn_predict_layers above 1) are not used: the first drafts all tokens, each from its own
feature.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quire.errors import ConfigError
from quire.plugin import DrafterContext, Part, WeightsMapper
from quire_drafters.heads.feature_model import FeatureModel, load_model
from quire_drafters.heads.head_files import FLAG, CheckedFiles, HeadFiles, as_config_error
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
    None without one. own_head: whether it has an LM head. returns_normed: whether features have the final norm.
    """

    block: Any
    norm: Part
    width: int
    vocab: int
    own_vocab: int | None
    own_head: bool
    returns_normed: bool


class MtpModel(FeatureModel):
    """One layer of multi-token prediction."""

    def __init__(self, parts: MtpParts, builder: ModuleBuilder, target: Any) -> None:
        super().__init__(parts.width, builder, target, parts.own_vocab)
        self.enorm, self.hnorm = (parts.norm.build(parts.width, builder) for _ in range(2))
        self.eh_proj = builder.projection(2 * parts.width, parts.width)
        self.blocks = nn.ModuleList([parts.block.build(parts.width, builder.at_layer(0))])
        norm = parts.norm.build(parts.width, builder)
        self.norm = norm if parts.returns_normed else None
        self.head_norm = None if parts.returns_normed else norm
        self.draft_head = builder.projection(parts.width, parts.vocab) if parts.own_head else None
        self.kv_shapes = (kv_shape(parts.block),)

    def inputs(self, embeddings: Tensor, features: Tensor) -> Tensor:
        return self.eh_proj.multiply(torch.cat([self.enorm(embeddings), self.hnorm(features)], -1))

    def before_head(self, features: Tensor) -> Tensor:
        return features if self.head_norm is None else self.head_norm(features)

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
    block = next((each for each in reversed(decoder.blocks) if state_shape(each) is None), None)
    if block is None or decoder.norm is None:
        raise ConfigError(f"`method` of {FLAG}: {context.model} has no layers that can predict further tokens.")
    files = HeadFiles(Path(target.info.folder))
    prefix = f"model.layers.{len(decoder.blocks)}."
    is_qwen = "mtp.fc.weight" in files.tensors
    tensors = CheckedFiles(files, _of_qwen if is_qwen else lambda name: _of_layer(name, prefix))
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
        returns_normed=is_qwen,
    )
    builder = ModuleBuilder(target.ops, target.dtype, target.device, keep_weights=False)
    names = replace(target.names, ignored=()) | NAMES
    with as_config_error():
        return load_model(lambda on: MtpModel(parts, on, target), builder, decoder, names, tensors)


_OWN = ("enorm.", "hnorm.", "eh_proj.", "embed_tokens.", "shared_head.")
_OF_QWEN = {
    "mtp.fc.": "eh_proj.",
    "mtp.pre_fc_norm_embedding.": "enorm.",
    "mtp.pre_fc_norm_hidden.": "hnorm.",
    "mtp.norm.": "norm.",
    "mtp.layers.0.": "model.layers.0.",
}


def _of_layer(name: str, prefix: str) -> str | None:
    """Tensors of the layer are those of layer 0 of a model, and the module's own; the others are left out."""
    if not name.startswith(prefix) or name.endswith("rotary_emb.inv_freq"):
        return None
    rest = name.removeprefix(prefix)
    return rest if rest.startswith(_OWN) else f"model.layers.0.{rest}"


def _of_qwen(name: str) -> str | None:
    """The name that a tensor would have in a layer."""
    return next(
        (ours + name.removeprefix(theirs) for theirs, ours in _OF_QWEN.items() if name.startswith(theirs)), None
    )
