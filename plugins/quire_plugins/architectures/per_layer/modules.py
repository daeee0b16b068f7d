"""The modules of decoders with per-layer embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from quire.plugin import ForwardBatch, ModuleBuilder, RMSNorm
from quire_models.modules.blocks import DecoderModel, ResidualBlock
from quire_models.modules.embedding import EmbeddingTable
from quire_models.modules.projection import apply_adapters

if TYPE_CHECKING:
    from quire_plugins.architectures.per_layer.parts import PerLayerBlock, PerLayerDecoder

INPUTS = "inputs of each block"
"""Key in `ForwardBatch.step_cache`: [tokens, blocks, inputs]."""


class PerLayerInputs(nn.Module):
    """Embeddings of the tokens for all blocks: looked up, and projected from the first block's input."""

    def __init__(self, part: PerLayerDecoder, builder: ModuleBuilder) -> None:
        super().__init__()
        self._inputs = part.inputs
        columns = len(part.blocks) * part.inputs
        self.embed = EmbeddingTable(part.inputs_vocab, columns, builder)
        self.projection = builder.projection(part.width, columns)
        self.norm = RMSNorm(part.eps).build(part.inputs, builder)
        self._scale = part.width**-0.5
        self._has_all = part.inputs_vocab >= part.vocab  # otherwise the last tokens have the embeddings of token 0

    def forward(self, x: Tensor, tokens: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width], the first block's input; tokens int64 [tokens] -> [tokens, blocks, inputs]."""
        ids = tokens if self._has_all else tokens.where(tokens < self.embed.count, 0)
        found = apply_adapters(self.embed, self.embed.look_up(ids, self._inputs**0.5), ids, fwd.adapters)
        projected = (self.projection(x, fwd) * self._scale).unflatten(-1, (-1, self._inputs))
        return (self.norm(projected) + found.unflatten(-1, (-1, self._inputs))) * 2**-0.5


class PerLayerDecoderModel(DecoderModel):
    """The module that the part `PerLayerDecoder` builds."""

    first_modules = (*DecoderModel.first_modules, "per_layer")

    def __init__(self, part: PerLayerDecoder, builder: ModuleBuilder) -> None:
        super().__init__(part, builder)
        self.per_layer = PerLayerInputs(part, builder) if part.inputs else None
        self._media_token = part.media_token

    def embed_tokens(self, fwd: ForwardBatch) -> Tensor:
        """Input of the first block, [tokens, width]; stores those of the others in the step's cache."""
        x = super().embed_tokens(fwd)
        if self.per_layer is not None:
            fwd.step_cache[INPUTS] = self.per_layer(x, self._text_tokens(fwd), fwd)
        return x

    def _text_tokens(self, fwd: ForwardBatch) -> Tensor:
        """The tokens of a step, with one token in place of all media: int64 [tokens]."""
        if fwd.media is None or self._media_token is None:
            return fwd.tokens
        return fwd.tokens.index_fill(0, fwd.media.index, self._media_token)


class PerLayerResidualBlock(ResidualBlock):
    """The module that the part `PerLayerBlock` builds."""

    def __init__(self, width: int, part: PerLayerBlock, builder: ModuleBuilder) -> None:
        super().__init__(width, part, builder)
        self._layer, self._act, self._ops = part.layer, part.act, builder.ops
        self.layer_scalar = builder.parameter(1)
        if part.inputs:
            self.input_gate = builder.projection(width, part.inputs)
            self.input_out = builder.projection(part.inputs, width)
            self.input_norm = part.norm.build(width, builder)
        self._has_inputs = bool(part.inputs)

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]."""
        x = super().forward(x, fwd)
        if self._has_inputs:
            gate = self._ops.act(self.input_gate(x, fwd), self._act)
            x = x + self.input_norm(self.input_out(gate * fwd.step_cache[INPUTS][:, self._layer], fwd))
        return x * self.layer_scalar
