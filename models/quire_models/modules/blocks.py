"""Modules of the blocks and of the whole decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from quire_models.modules.embedding import EmbeddingTable
from quire_models.modules.norms import norm_of_sum
from quire_models.modules.projection import Projection, apply_adapters, is_batch_invariant
from quire_models.modules.stack import TransformerStack

if TYPE_CHECKING:
    from quire_models.modules.attention.cross_attention import EncoderSlotMapping
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.decoder import Block, Decoder, ParallelBlock, PostNormBlock
    from quire_models.sharding.vocabulary import VocabularyShare
    from quire_models.step.forward_batch import ForwardBatch


class ResidualBlock(nn.Module):
    """The module that the part `parts.decoder.Block` builds."""

    def __init__(self, width: int, part: Block, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.attn = part.attn.build(width, builder)
        self.mlp = part.mlp.build(width, builder)
        self.attn_in = part.norm.build(width, builder) if part.norm_in else None
        self.attn_out = part.norm.build(width, builder) if part.norm_out else None
        self.mlp_in = part.norm.build(width, builder) if part.norm_in else None
        self.mlp_out = part.norm.build(width, builder) if part.norm_out else None

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]. May overwrite x."""
        x, y = self.branch(x, None, fwd)
        return x.add_(y)

    def branch(self, x: Tensor, rest: Tensor | None, fwd: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Two tensors whose sum is the result for x + rest. May overwrite both."""
        h, x = (
            (x if self.attn_in is None else self.attn_in(x), x) if rest is None else norm_of_sum(self.attn_in, rest, x)
        )
        seen = self.attn(h, fwd)
        h, x = norm_of_sum(self.mlp_in, self._scaled(seen if self.attn_out is None else self.attn_out(seen)), x)
        y = self.mlp(h, fwd)
        return x, self._scaled(y if self.mlp_out is None else self.mlp_out(y))

    def _scaled(self, branch: Tensor) -> Tensor:
        return branch if self.part.residual_scale == 1.0 else branch * self.part.residual_scale


class ParallelResidualBlock(nn.Module):
    """The module that the part `parts.decoder.ParallelBlock` builds."""

    def __init__(self, width: int, part: ParallelBlock, builder: ModuleBuilder) -> None:
        super().__init__()
        self.attn = part.attn.build(width, builder)
        self.mlp = part.mlp.build(width, builder)
        self.attn_in = part.norm.build(width, builder)
        self.mlp_in = part.norm.build(width, builder) if part.norms == 2 else None

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]."""
        h = self.attn_in(x)
        m = h if self.mlp_in is None else self.mlp_in(x)
        return x + self.attn(h, fwd) + self.mlp(m, fwd)


class PostNormResidualBlock(nn.Module):
    """The module that the part `parts.decoder.PostNormBlock` builds."""

    def __init__(self, width: int, part: PostNormBlock, builder: ModuleBuilder) -> None:
        super().__init__()
        self.attn = part.attn.build(width, builder)
        self.mlp = part.mlp.build(width, builder)
        self.attn_in = part.norm.build(width, builder)
        self.mlp_in = part.norm.build(width, builder)

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]."""
        x = self.attn_in(x + self.attn(x, fwd))
        return self.mlp_in(x + self.mlp(x, fwd))


class DecoderModel(TransformerStack):
    """The module that the part `parts.decoder.Decoder` builds: a language model whose only state is `ForwardBatch.kv`.

    head: the LM head, None without one. embed_scale: factor of the embeddings. vocabulary: the rows of the table and of
    the head that this rank has; None = all.
    """

    adds_no_products = True

    def __init__(self, part: Decoder, builder: ModuleBuilder) -> None:
        super().__init__(part.width, builder)
        self.part = part
        self.vocabulary: VocabularyShare | None = None
        embed_width = part.embed_width or part.width
        rows = part.vocab if part.table_rows is None else part.table_rows
        self.embed = EmbeddingTable(rows, embed_width, builder)
        self.positions = (
            EmbeddingTable(part.positions.count + part.positions.offset, part.width, builder)
            if part.positions
            else None
        )
        self.embed_norm = part.embed_norm.build(part.width, builder) if part.embed_norm else None
        self.embed_in = builder.projection(embed_width, part.width) if part.embed_width else None
        self.embed_out = builder.projection(part.width, embed_width) if part.embed_width else None
        self.blocks = nn.ModuleList(block.build(part.width, builder.at_layer(i)) for i, block in enumerate(part.blocks))
        self.norm = part.norm.build(part.width, builder) if part.norm else None
        self.head = self._make_head(part, rows, embed_width, builder)
        # rounded to the embeddings' dtype first, as transformers does with a scale such as √width
        self.embed_scale = torch.tensor(part.embed_scale, dtype=builder.dtype).item()

    def _make_head(self, part: Decoder, rows: int, width: int, builder: ModuleBuilder) -> Projection | None:
        if not part.has_lm_head:
            return None
        return (
            builder.projection_of(self.embed.weight, part.head_bias)
            if part.tied
            else builder.projection(width, rows, part.head_bias)
        )

    @property
    def _head_holds_table(self) -> bool:
        """Whether the table's parameter was emptied because a tied head has packed it."""
        return self.part.tied and self.head is not None and not len(self.embed.weight)

    @property
    def _language_head(self) -> Projection:
        assert self.head is not None, "a model without an LM head has no logits"
        return self.head

    def forward(self, fwd: ForwardBatch) -> Tensor:
        """Hidden states of the logit rows after the final norm, [L, width]; writes keys and values of all tokens to
        the KV cache. A stage before the last one returns those of all tokens.
        """
        return self._run(self.embed_tokens(fwd), fwd) if self.stage is None else self.stage.compute(self, fwd)

    def _steps(self) -> Sequence[Callable[[Tensor, ForwardBatch], Tensor]]:
        count = self.part.deepstack
        features = [(block, partial(_add_features, i)) for i, block in enumerate(self.blocks[:count], 1)]
        return (*chain.from_iterable(features), *self.blocks[count:])

    def store(self, rows: Tensor, slots: EncoderSlotMapping) -> None:
        """Store keys and values of encoder-input rows [N, width] for all blocks; every block has cross-attention."""
        for block in cast(Any, self.blocks):
            block.store(rows, slots)

    def embed_tokens(self, fwd: ForwardBatch) -> Tensor:
        """Input of the first block, [tokens, width]: rows of the embedding table, replaced by media rows where there
        are any.
        """
        x = apply_adapters(self.embed, self._look_up(fwd.tokens), fwd.tokens, fwd.adapters)
        if fwd.media is not None:
            x.index_copy_(0, fwd.media.index, fwd.media.rows[:, : x.shape[-1]].to(x.dtype))
        if self.embed_in is not None:
            x = self.embed_in(x, fwd)
        if self.positions is not None and self.part.positions is not None:
            ids = fwd.positions + self.part.positions.offset
            x = x + apply_adapters(self.positions, self.positions.look_up(ids), ids, fwd.adapters)
        return x if self.embed_norm is None else self.embed_norm(x)

    def _look_up(self, ids: Tensor) -> Tensor:
        """Rows of the embedding table, scaled."""
        if self.vocabulary is not None:
            return self.vocabulary.look_up(ids, self._own_rows)
        return self._own_rows(ids)

    def _own_rows(self, ids: Tensor) -> Tensor:
        """Scaled rows of the table that this rank has, as a new tensor."""
        if not self._head_holds_table:
            return self.embed.look_up(ids, self.embed_scale)
        found = self._language_head.rows(ids)
        return found if self.embed_scale == 1.0 else found.mul_(self.embed_scale)

    def embed_rows(self, ids: Tensor) -> Tensor:
        """Unscaled rows of the embedding table, [len(ids), embed width]. For any thread, unless ranks divide it."""
        return self.held_rows(ids) if self.vocabulary is None else self.vocabulary.look_up(ids, self.held_rows)

    def held_rows(self, ids: Tensor) -> Tensor:
        """Rows of the part of the table that this rank has, counted from its first; a tied head may hold it."""
        return (self._language_head.rows if self._head_holds_table else self.embed.rows)(ids)

    def logits(self, hidden: Tensor, adapters: Any = None) -> Tensor:
        """hidden [rows, width] -> float32 [rows, vocab].

        adapters: what is bound for these rows; None if no adapter changes modules after the hidden states.
        """
        if self.embed_out is not None:
            hidden = apply_adapters(self.embed_out, self.embed_out.multiply(hidden), hidden, adapters)
        head = self._language_head
        y = apply_adapters(head, head.multiply(hidden, float32=True), hidden, adapters)
        if self.vocabulary is not None:
            y = self.vocabulary.gather(y.float())
        return self.ops.scale_logits(y, self.part.logit_scale, self.part.logit_softcap)

    @property
    def _has_plain_logits(self) -> bool:
        """Whether logits are what the LM head returns."""
        part = self.part.logit_scale, self.part.logit_softcap
        return self.embed_out is None and self.vocabulary is None and part == (1.0, None)

    def has_invariant_logits(self, adapters: Any) -> bool:
        """Whether no bit of a row of `logits` depends on the other rows. False where that is not known."""
        modules = (self.embed_out, self.head)
        return self.part.logit_softcap is None and all(is_batch_invariant(module, adapters) for module in modules)

    def argmax(self, hidden: Tensor, adapters: Any = None) -> list[int]:
        """The most likely token of each row: the op `argmax` on `logits`, computed by the head itself where it can."""
        head = self._language_head
        found = getattr(head.multiply, "argmax", None)
        if found is None or not self._has_plain_logits or (adapters is not None and head.delta is not None):
            return self.ops.argmax(self.logits(hidden, adapters)).tolist()
        return found(hidden)  # type: ignore[no-any-return]

    def generate(self, fwd: ForwardBatch, slots: Tensor) -> Tensor | None:
        """The N most likely tokens after those of `fwd`, one token a row, by one call: int64 [N, R]; None if the
        blocks or this step do not allow it. Counts positions and contexts up. slots: int64 [N, R], of each run.
        """
        run, argmax = getattr(self._run, "generate", None), getattr(self._language_head.multiply, "argmax", None)
        changed = self.embed_in, self.positions, self.embed_norm, fwd.adapters, fwd.media
        table = self._language_head.multiply if self._head_holds_table else self.embed.weight.data
        if run is None or argmax is None or any(each is not None for each in changed) or not self._has_plain_logits:
            return None
        return run(fwd, table, self.embed_scale, argmax, fwd.tokens, slots)  # type: ignore[no-any-return]


def _add_features(part: int, x: Tensor, fwd: ForwardBatch) -> Tensor:
    """x [tokens, width] plus the features of media that follow their embeddings. part: which of them, from 1."""
    if fwd.media is None:
        return x
    width = x.shape[-1]
    return x.index_add_(0, fwd.media.index, fwd.media.rows[:, part * width : (part + 1) * width].to(x.dtype))
