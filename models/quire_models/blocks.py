"""The modules of blocks and the whole decoder. Which architecture they make up is the parts' affair."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from quire_models.norms import RmsNorm
from quire_models.projection import Projection, ProjectionDelta, changed

if TYPE_CHECKING:
    from quire_models.forward import Forward
    from quire_models.make import Make
    from quire_models.parts import Block, Decoder, ParallelBlock, PostNormBlock
    from quire_models.source_blocks import SourceSlots


class ResidualBlock(nn.Module):
    """The module of `parts.Block`."""

    def __init__(self, width: int, part: Block, make: Make) -> None:
        super().__init__()
        self.part = part
        self.attn = part.attn.build(width, make)
        self.mlp = part.mlp.build(width, make)
        self.attn_in = part.norm.build(width, make) if part.norm_in else None
        self.attn_out = part.norm.build(width, make) if part.norm_out else None
        self.mlp_in = part.norm.build(width, make) if part.norm_in else None
        self.mlp_out = part.norm.build(width, make) if part.norm_out else None

    def forward(self, x: Tensor, fwd: Forward) -> Tensor:
        """x [tokens, width] -> [tokens, width]. May overwrite x."""
        seen = self.attn(x if self.attn_in is None else self.attn_in(x), fwd)
        seen = self._scaled(seen if self.attn_out is None else self.attn_out(seen))
        if isinstance(self.mlp_in, RmsNorm):  # the sum and the norm in one op
            h, x = self.mlp_in.add(seen, x)
        else:
            x = x + seen
            h = x if self.mlp_in is None else self.mlp_in(x)
        y = self.mlp(h, fwd)
        return x.add_(self._scaled(y if self.mlp_out is None else self.mlp_out(y)))

    def _scaled(self, branch: Tensor) -> Tensor:
        return branch if self.part.residual_scale == 1.0 else branch * self.part.residual_scale


class ParallelResidualBlock(nn.Module):
    """The module of `parts.ParallelBlock`."""

    def __init__(self, width: int, part: ParallelBlock, make: Make) -> None:
        super().__init__()
        self.attn = part.attn.build(width, make)
        self.mlp = part.mlp.build(width, make)
        self.attn_in = part.norm.build(width, make)
        self.mlp_in = part.norm.build(width, make) if part.norms == 2 else None

    def forward(self, x: Tensor, fwd: Forward) -> Tensor:
        """x [tokens, width] -> [tokens, width]."""
        h = self.attn_in(x)
        m = h if self.mlp_in is None else self.mlp_in(x)
        return x + self.attn(h, fwd) + self.mlp(m, fwd)


class PostNormResidualBlock(nn.Module):
    """The module of `parts.PostNormBlock`."""

    def __init__(self, width: int, part: PostNormBlock, make: Make) -> None:
        super().__init__()
        self.attn = part.attn.build(width, make)
        self.mlp = part.mlp.build(width, make)
        self.attn_in = part.norm.build(width, make)
        self.mlp_in = part.norm.build(width, make)

    def forward(self, x: Tensor, fwd: Forward) -> Tensor:
        """x [tokens, width] -> [tokens, width]."""
        x = self.attn_in(x + self.attn(x, fwd))
        return self.mlp_in(x + self.mlp(x, fwd))


@dataclass(frozen=True)
class OpTimes:
    """What `Stack.profile` gives: rows() is (operation, calls, seconds) for each operation so far."""

    rows: Callable[[], list[tuple[str, int, float]]]


class Table(nn.Module):
    """An embedding table. delta: set by an adapter runtime; called with the rows looked up, and their ids."""

    def __init__(self, rows: int, width: int, make: Make) -> None:
        super().__init__()
        self.count, self.width = rows, width
        self.weight = make.parameter(rows, width)
        self.delta: ProjectionDelta | None = None


class Stack(nn.Module):
    """What decoders and encoders have in common: blocks that run as one where the ops can, and the norm after them.

    tower: turns tensors of media into rows of embeddings (`quire_models.tower`) for whoever fills `Forward.media`.
    heads: pooling heads by name (`quire_models.poolers`), put there by whoever builds it.
    ops, dtype, device: what it was made with.
    """

    blocks: nn.ModuleList
    norm: nn.Module | None

    def __init__(self, width: int, make: Make) -> None:
        super().__init__()
        self._width = width
        self.tower: nn.Module | None = None
        self.heads = nn.ModuleDict()
        self.ops, self.dtype, self.device = make.ops, make.dtype, make.device
        self._run: Callable[[Tensor, Forward], Tensor] = self._bind_and_run

    def _finish(self, x: Tensor, fwd: Forward) -> Tensor:
        """x [tokens, width] -> [L, width]."""
        x = x.index_select(0, fwd.logit_rows)
        return x if self.norm is None else self.norm(x)

    def prepare(self) -> None:
        """Bind the blocks anew, at the next step: they are prepared after this module."""
        self._run = self._bind_and_run

    @contextmanager
    def profile(self) -> Iterator[OpTimes]:
        """While this is open, operations that run inside one call are timed; none where each is a call of its own."""
        timing = getattr(self._run, "timing", None)
        if timing is None:
            yield OpTimes(list)
            return
        with timing() as rows:
            yield OpTimes(rows)

    def _bind_and_run(self, x: Tensor, fwd: Forward) -> Tensor:
        self._run = self.ops.blocks((*self.blocks, self._finish), self._width)
        return self._run(x, fwd)


class DecoderModel(Stack):
    """The module of `parts.Decoder`: a language model whose state is all in `Forward.kv`.

    head: None if it has none. embed_scale: what rows of the token table are multiplied by.
    """

    def __init__(self, part: Decoder, make: Make) -> None:
        super().__init__(part.width, make)
        self.part = part
        embed_width = part.embed_width or part.width
        self.embed = Table(part.vocab, embed_width, make)
        self.positions = (
            Table(part.positions.count + part.positions.offset, part.width, make) if part.positions else None
        )
        self.embed_in = make.projection(embed_width, part.width) if part.embed_width else None
        self.embed_out = make.projection(part.width, embed_width) if part.embed_width else None
        self.blocks = nn.ModuleList(block.build(part.width, make.at_layer(i)) for i, block in enumerate(part.blocks))
        self.norm = part.norm.build(part.width, make) if part.norm else None
        self.head = self._make_head(part, embed_width, make)
        # as the embeddings have it: a scale such as √width is rounded to their dtype first
        self.embed_scale = torch.tensor(part.embed_scale, dtype=make.dtype).item()

    def _make_head(self, part: Decoder, width: int, make: Make) -> Projection | None:
        if not part.generates:
            return None
        return (
            make.projection_of(self.embed.weight) if part.tied else make.projection(width, part.vocab, part.head_bias)
        )

    @property
    def _language_head(self) -> Projection:
        assert self.head is not None, "a model that does not generate gives no logits"
        return self.head

    def forward(self, fwd: Forward) -> Tensor:
        """Hidden states of the logit rows after the final norm, [L, width]; stores keys and values of all tokens."""
        return self._run(self.embed_tokens(fwd), fwd)

    def store(self, rows: Tensor, places: SourceSlots) -> None:
        """Keep for the blocks, all of which read sources, what they read of some rows: [N, width]."""
        block: Any
        for block in self.blocks:
            block.store(rows, places)

    def embed_tokens(self, fwd: Forward) -> Tensor:
        """What the first block reads, [tokens, width]: rows of the table, or of media where there are any."""
        x = changed(self.embed, self._look_up(fwd.tokens), fwd.tokens, fwd.adapters)
        if fwd.media is not None:
            x.index_copy_(0, fwd.media.index, fwd.media.rows.to(x.dtype))
        if self.embed_in is not None:
            x = self.embed_in(x, fwd)
        if self.positions is not None and self.part.positions is not None:
            ids = fwd.positions + self.part.positions.offset
            x = x + changed(self.positions, self.ops.embedding(ids, self.positions.weight), ids, fwd.adapters)
        return x

    def _look_up(self, ids: Tensor) -> Tensor:
        """Rows of the token table, scaled."""
        if len(self.embed.weight):
            return self.ops.embedding(ids, self.embed.weight, self.embed_scale)
        found = self._language_head.rows(ids)
        return found if self.embed_scale == 1.0 else found.mul_(self.embed_scale)

    def embed_rows(self, ids: Tensor) -> Tensor:
        """Rows of the token table as they are, [len(ids), embed width], for ids int64. From any thread.

        They are the head's if it holds the only copy.
        """
        weight = self.embed.weight.data
        return weight.index_select(0, ids) if len(weight) else self._language_head.rows(ids)

    def logits(self, hidden: Tensor, adapters: Any = None) -> Tensor:
        """hidden [rows, width] -> float32 [rows, vocab].

        adapters: what is bound for these rows; None if nothing changes what comes after the hidden states.
        """
        if self.embed_out is not None:
            hidden = changed(self.embed_out, self.embed_out.multiply(hidden), hidden, adapters)
        head = self._language_head
        y = changed(head, head.multiply(hidden, float32=True), hidden, adapters)
        return self.ops.logits_tail(y, self.part.logit_scale, self.part.logit_softcap)

    def argmax(self, hidden: Tensor, adapters: Any = None) -> list[int]:
        """The most likely token of each row: what the op `argmax` gives for `logits`, sooner where the head can."""
        part, head = self.part, self._language_head
        plain = self.embed_out is None and part.logit_scale == 1.0 and part.logit_softcap is None
        found = getattr(head.multiply, "argmax", None)
        if found is None or not plain or (adapters is not None and head.delta is not None):
            found_by_op: list[int] = self.ops.argmax(self.logits(hidden, adapters)).tolist()
            return found_by_op
        tokens: list[int] = found(hidden)
        return tokens
