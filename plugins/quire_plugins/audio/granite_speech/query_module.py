"""The modules of `QueryWindows`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from quire_models import LayerNorm, ModuleBuilder, TowerCall

if TYPE_CHECKING:
    from quire_models.towers.tower import TowerContext
    from quire_plugins.audio.granite_speech.query_windows import QueryWindows


class QueryWindowsModule(nn.Module):
    """Hidden states of several items to embeddings. queries: [1, queries of a window, width]."""

    def __init__(self, width: int, part: QueryWindows, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.queries = builder.parameter(1, part.queries, part.width)
        self.norm = LayerNorm(part.eps).build(part.width, builder)
        self.layers = nn.ModuleList(QueryLayer(part, i % part.every == 0, builder) for i in range(part.layers))
        self.linear = builder.projection(part.width, width, bias=True)

    def forward(self, x: Tensor, counts: Sequence[int], call: TowerCall) -> list[Tensor]:
        """x [n, inputs] -> rows of each item. counts: hidden states of each item, n in all."""
        size = self.part.window
        padded = [pad(item, (0, 0, 0, -len(item) % size)) for item in x.split(list(counts))]
        windows, lengths = torch.cat(padded), [self.part.rows(count) for count in counts]
        tokens, hidden = call.context(lengths), call.context([len(item) for item in padded])
        queries = self.norm(self.queries).expand(len(windows) // size, -1, -1).flatten(0, 1)
        for layer in self.layers:
            queries = layer(queries, windows, tokens, hidden)
        return list(self.linear(queries, tokens).split(lengths))


class QueryLayer(nn.Module):
    """Queries read each other and, in some layers, their window."""

    def __init__(self, part: QueryWindows, reads_window: bool, builder: ModuleBuilder) -> None:
        super().__init__()
        self._ops, self._act = builder.ops, part.act
        self.attention = WindowReader(part, part.width, part.queries, builder)
        self.crossattention = WindowReader(part, part.inputs, part.window, builder) if reads_window else None
        self.up = builder.projection(part.width, part.mlp, bias=True)
        self.down = builder.projection(part.mlp, part.width, bias=True)
        self.norm = LayerNorm(part.eps).build(part.width, builder)

    def forward(self, queries: Tensor, windows: Tensor, tokens: TowerContext, hidden: TowerContext) -> Tensor:
        """queries [m, width], windows [n, inputs] -> [m, width]."""
        x = self.attention(queries, queries, tokens, tokens)
        if self.crossattention is not None:
            x = self.crossattention(x, windows, tokens, hidden)
        normed: Tensor = self.norm(x + self.down(self._ops.act(self.up(x, tokens), self._act), tokens))
        return normed


class WindowReader(nn.Module):
    """Attention of the queries of each window to `seen` states, with residual sum and norm."""

    def __init__(self, part: QueryWindows, inputs: int, seen: int, builder: ModuleBuilder) -> None:
        super().__init__()
        self._heads, self._queries, self._seen = part.heads, part.queries, seen
        self.query = builder.projection(part.width, part.width, bias=True)
        self.key = builder.projection(inputs, part.width, bias=True)
        self.value = builder.projection(inputs, part.width, bias=True)
        self.out = builder.projection(part.width, part.width, bias=True)
        self.norm = LayerNorm(part.eps).build(part.width, builder)

    def forward(self, x: Tensor, states: Tensor, tokens: TowerContext, hidden: TowerContext) -> Tensor:
        """x [m, width], states [n, inputs] -> [m, width]. tokens, hidden: contexts of x and of the states."""
        q = self._cut(self.query(x, tokens), self._queries)
        k, v = (self._cut(part(states, hidden), self._seen) for part in (self.key, self.value))
        read = scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).flatten(0, 1)
        normed: Tensor = self.norm(x + self.out(read, tokens))
        return normed

    def _cut(self, x: Tensor, size: int) -> Tensor:
        """[n, width] -> [windows, heads, size, head_dim]."""
        return x.unflatten(0, (-1, size)).unflatten(-1, (self._heads, -1)).transpose(1, 2)
