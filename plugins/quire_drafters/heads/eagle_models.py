"""The modules of EAGLE, EAGLE 2 and EAGLE 3.

EAGLE 1 and 2 (arXiv 2401.15077 and 2406.16858) differ in how trees are drafted, not in the model: one decoder block
without a norm before its attention reads fc(embedding, feature), where features are what the LM head gets. EAGLE 3
(arXiv 2503.01840) reads fc(three inputs of blocks), normalizes it and the embedding apart, and has an LM head of its
own, often over a part of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from quire.plugin import Block, ForwardBatch, ReadsHidden
from quire_drafters.heads.feature_model import FeatureModel
from quire_models import Attention
from quire_models.modules.builder import ModuleBuilder
from quire_models.parts.state import kv_shape


@dataclass(frozen=True)
class EagleParts:
    """What a checkpoint of EAGLE has.

    fc_bias: whether fc has a bias. normed: whether the first block has a norm before its attention. own_vocab: rows of
    its embedding table, None without. before_blocks: for EAGLE 3, the blocks whose inputs it reads. draft_vocab: rows
    of its LM head. norm_first: the residual is the normed feature (norm_before_residual). target_width: of the model.
    """

    block: Block
    width: int
    num_blocks: int = 1
    fc_bias: bool = False
    normed: bool = False
    own_vocab: int | None = None
    before_blocks: tuple[int, ...] = ()
    draft_vocab: int = 0
    norm_first: bool = False
    target_width: int = 0


class EagleModel(FeatureModel):
    """EAGLE 1 and 2."""

    def __init__(self, parts: EagleParts, builder: ModuleBuilder, target: Any) -> None:
        super().__init__(parts.width, builder, target, parts.own_vocab)
        self.fc = builder.projection(2 * parts.width, parts.width, parts.fc_bias)
        blocks = [parts.block.build(parts.width, builder.at_layer(i)) for i in range(parts.num_blocks)]
        if not parts.normed:
            blocks[0].attn_in = None  # type: ignore[assignment]
        self.blocks = nn.ModuleList(blocks)
        self.kv_shapes = (kv_shape(parts.block),) * parts.num_blocks

    def inputs(self, embeddings: Tensor, features: Tensor) -> Tensor:
        return self.fc.multiply(torch.cat([embeddings, features], -1))


class Eagle3Block(nn.Module):
    """A decoder block that attends with [normed embedding, normed feature], and adds to the feature."""

    def __init__(self, parts: EagleParts, builder: ModuleBuilder) -> None:
        super().__init__()
        block, width = parts.block, parts.width
        attention = block.attn
        assert isinstance(attention, Attention)
        self._width, self._norm_first = width, parts.norm_first
        self.attn = attention.build(2 * width, builder)
        self.mlp = block.mlp.build(width, builder)
        self.attn_in = block.norm.build(width, builder)
        self.hidden_norm = block.norm.build(width, builder)
        self.mlp_in: Any = block.norm.build(width, builder)

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, 2 * width] -> [tokens, width]."""
        embeddings, features = (part.contiguous() for part in x.split([self._width] * 2, -1))
        normed = self.hidden_norm(features)
        seen = self.attn(torch.cat([self.attn_in(embeddings), normed], -1), fwd)
        h, summed = self.mlp_in.add(seen, normed.clone() if self._norm_first else features)
        return summed.add_(self.mlp(h, fwd))


class Eagle3Model(FeatureModel):
    """EAGLE 3. offsets: int64 [draft_vocab], what is added to the number of a row of its LM head (d2t)."""

    def __init__(self, parts: EagleParts, builder: ModuleBuilder, target: Any, offsets: Tensor | None) -> None:
        super().__init__(parts.width, builder, target, parts.own_vocab)
        self.reads_hidden = ReadsHidden(True, parts.before_blocks)
        self._target_width = parts.target_width
        self.fc = builder.projection(len(parts.before_blocks) * parts.target_width, parts.width, parts.fc_bias)
        self.blocks = nn.ModuleList([Eagle3Block(parts, builder.at_layer(0))])
        self.head_norm = parts.block.norm.build(parts.width, builder)
        self.draft_head = builder.projection(parts.width, parts.draft_vocab)
        self.kv_shapes = (kv_shape(parts.block),)
        rows = torch.arange(parts.draft_vocab)
        tokens = rows if offsets is None else rows + offsets
        self.columns = tokens.to(builder.device)
        self._ids: list[int] = tokens.tolist()

    def read(self, rows: Tensor) -> Tensor:
        return self.fc.multiply(rows[:, self._target_width :].contiguous()).clone()

    def inputs(self, embeddings: Tensor, features: Tensor) -> Tensor:
        return torch.cat([embeddings, features], -1)

    def before_head(self, features: Tensor) -> Tensor:
        normed: Tensor = self.head_norm(features)
        return normed

    def logits(self, features: Tensor) -> Tensor:
        return self.draft_head.multiply(self.before_head(features), True)

    def argmax(self, features: Tensor) -> list[int]:
        return self.token_ids(self.ops.argmax(self.logits(features)).tolist())

    def token_ids(self, columns: Sequence[int]) -> list[int]:
        return [self._ids[column] if column >= 0 else -1 for column in columns]
