"""Modules of encoders: attention within whole prompts, and the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quire_models.modules.embedding import EmbeddingTable
from quire_models.modules.projection import apply_adapters
from quire_models.modules.stack import TransformerStack

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.encoder import Encoder, RowAttention
    from quire_models.step.forward_batch import ForwardBatch


class WholeRowAttention(nn.Module):
    """The module that the part `parts.encoder.RowAttention` builds."""

    def __init__(self, width: int, part: RowAttention, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self._ops = builder.ops
        q_size, kv_size = part.heads * part.head_dim, part.kv_heads * part.head_dim
        self.qkv = builder.projection(width, {"q": q_size, "k": kv_size, "v": kv_size}, part.qkv_bias)
        self.o = builder.projection(q_size, width, part.out_bias)
        self.q_norm = part.qk_norm.build(q_size, builder) if part.qk_norm else None
        self.k_norm = part.qk_norm.build(kv_size, builder) if part.qk_norm else None
        self._angles = builder.angles(part.rope) if part.rope else None
        self._sizes = [q_size, kv_size, kv_size]
        self._scale = part.head_dim**-0.5 if part.scale is None else part.scale
        self.position_bias = part.position_bias.build(part.heads, builder) if part.position_bias else None
        self.process_weights()

    def process_weights(self) -> None:
        """Collect the options of the op, so that a step passes only those that the part has."""
        bias = self.position_bias
        self._options = {} if bias is None else {"biases": bias.by_distance()}

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]."""
        part, ops = self.part, self._ops
        parts = list(self.qkv(x, fwd).split(self._sizes, -1))
        if self.q_norm is not None and self.k_norm is not None:
            parts[:2] = self.q_norm(parts[0]), self.k_norm(parts[1])
        q, k, v = (t.unflatten(-1, (-1, part.head_dim)) for t in parts)  # [tokens, heads, head_dim]
        if self._angles is not None:
            assert part.rope is not None
            q, k = ops.rotary(q, k, *self._angles.for_step(fwd), part.rope.interleaved)
        seen = ops.row_attention(q, k, v, fwd.rows, self._scale, part.window, **self._options)
        return self.o(seen.flatten(1), fwd)


class EncoderModel(TransformerStack):
    """The module that the part `parts.encoder.Encoder` builds: a model without state between steps. head: always
    None.
    """

    adds_no_products = True

    def __init__(self, part: Encoder, builder: ModuleBuilder) -> None:
        builder = builder.for_many_rows()
        super().__init__(part.width, builder)
        self.part = part
        self.embed = EmbeddingTable(part.vocab, part.width, builder)
        self.positions = (
            EmbeddingTable(part.positions.count + part.positions.offset, part.width, builder)
            if part.positions
            else None
        )
        self.types = EmbeddingTable(part.token_types, part.width, builder) if part.token_types else None
        self.embed_norm = part.embed_norm.build(part.width, builder) if part.embed_norm else None
        self.blocks = nn.ModuleList(block.build(part.width, builder.at_layer(i)) for i, block in enumerate(part.blocks))
        self.norm = part.norm.build(part.width, builder) if part.norm else None
        self.head = None
        self.embed_scale = 1.0

    def forward(self, fwd: ForwardBatch) -> Tensor:
        """Hidden states of the logit rows after the final norm, [L, width]; at an earlier stage those of all tokens."""
        return self._run(self.embed_tokens(fwd), fwd) if self.stage is None else self.stage.compute(self, fwd)

    def embed_tokens(self, fwd: ForwardBatch) -> Tensor:
        """Input of the first block, [tokens, width]."""
        x = self._rows_of(self.embed, fwd.tokens, fwd)
        if fwd.media is not None:
            x.index_copy_(0, fwd.media.index, fwd.media.rows.to(x.dtype))
        if self.types is not None:
            types = torch.zeros_like(fwd.tokens) if fwd.token_types is None else fwd.token_types
            x += self._rows_of(self.types, types, fwd)
        if self.positions is not None and self.part.positions is not None:
            x += self._rows_of(self.positions, fwd.positions + self.part.positions.offset, fwd)
        return x if self.embed_norm is None else self.embed_norm(x)

    def _rows_of(self, table: EmbeddingTable, ids: Tensor, fwd: ForwardBatch) -> Tensor:
        """Rows of a table for ids int64 [tokens], [tokens, width], with adapters applied."""
        return apply_adapters(table, table.look_up(ids), ids, fwd.adapters)

    def embed_rows(self, ids: Tensor) -> Tensor:
        """Rows of the embedding table, [len(ids), width], for ids int64. May be called from any thread."""
        return self.embed.rows(ids)
