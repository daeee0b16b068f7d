"""The modules of Zamba2: the blocks with shared attention, and the decoder that keeps their first input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from quire.plugin import ForwardBatch, ModuleBuilder
from quire_models.modules.blocks import DecoderModel
from quire_models.modules.sharing import sharing

if TYPE_CHECKING:
    from quire_models.modules.projection import Projection
    from quire_plugins.architectures.hybrid.zamba2 import SharedBlock

FIRST_INPUT = "input of the first block"
"""Key in `ForwardBatch.step_cache`: [tokens, width]."""


class FirstInputDecoderModel(DecoderModel):
    """A decoder whose blocks may read the input of the first one."""

    def embed_tokens(self, fwd: ForwardBatch) -> Tensor:
        """Input of the first block, [tokens, width], of which the step's cache keeps a copy."""
        x = super().embed_tokens(fwd)
        fwd.step_cache[FIRST_INPUT] = x.clone()  # blocks may overwrite x
        return x


class CorrectedProjection(nn.Module):
    """A shared matrix plus a product of two small ones, which belongs to one use of it.

    sizes: names and outputs of the matrices that are fused; each has a product of its own.
    """

    def __init__(self, matrix: Projection, sizes: Mapping[str, int], rank: int, builder: ModuleBuilder) -> None:
        super().__init__()
        self.matrix = matrix
        self.small = builder.projection(matrix.inputs, {f"{name}_small": rank for name in sizes})
        self.wide = nn.ModuleDict({name: builder.projection(rank, outputs) for name, outputs in sizes.items()})
        self._sizes = [rank] * len(sizes)

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, inputs] -> [tokens, outputs]."""
        small = self.small(x, fwd).split(self._sizes, -1)
        added = [wide(part, fwd) for wide, part in zip(self.wide.values(), small, strict=True)]
        return self.matrix(x, fwd) + torch.cat(added, -1)


class SharedTransformer(nn.Module):
    """Attention and MLP, whose matrices several blocks use: of the block's input and the first block's input."""

    def __init__(self, width: int, part: SharedBlock, builder: ModuleBuilder) -> None:
        super().__init__()
        shared = sharing(builder, ("shared transformer", part.shared))
        self.attn_in = part.norm.build(2 * width, shared)
        self.attn = _built(part.attn, 2 * width, shared)
        self.mlp_in = part.norm.build(width, shared)
        self.mlp = _built(part.mlp, width, shared)
        if part.corrects_attention:
            qkv = {name: rows.stop - rows.start for name, rows in self.attn.qkv.slices.items()}
            self.attn.qkv = CorrectedProjection(self.attn.qkv, qkv, part.rank, builder)
        gate_up = {"gate_up": self.mlp.gate_up.outputs}
        self.mlp.gate_up = CorrectedProjection(self.mlp.gate_up, gate_up, part.rank, builder)

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]."""
        both = torch.cat((x, fwd.step_cache[FIRST_INPUT]), -1)
        return self.mlp(self.mlp_in(self.attn(self.attn_in(both), fwd)), fwd)


def _built(part: Any, width: int, builder: ModuleBuilder) -> Any:
    """The module of a part, of which more is known than that it is one."""
    return part.build(width, builder)


class SharedBlockModule(nn.Module):
    """The module that the part `SharedBlock` builds."""

    def __init__(self, width: int, part: SharedBlock, builder: ModuleBuilder) -> None:
        super().__init__()
        self.shared = SharedTransformer(width, part, builder)
        self.linear = builder.projection(width, width)
        self.mixer_in = part.norm.build(width, builder)
        self.mixer = part.mixer.build(width, builder)

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]."""
        seen = self.linear(self.shared(x, fwd), fwd)
        return x + self.mixer(self.mixer_in(x + seen), fwd)
