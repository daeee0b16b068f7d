"""`paged_attention` by FlexAttention: keys of a group of rows are gathered, and a mask says whose they are.

Tokens and keys are filled up to blocks of the mask, so that few sizes are compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex
from torch.nn.functional import pad

from quire_kernels.attention import PositionBiases, Stripes
from quire_kernels.ops import AttentionMetadata
from quire_plugins.attention.flex.scores import Places, mask_of, scores_of
from quire_plugins.attention.packed_rows import PackedRows, packed_rows

BLOCK = 128
"""Tokens and keys of a block of the mask."""


@dataclass(frozen=True)
class FlexAttention:
    """The op. attend, block_mask: `flex_attention` and `create_block_mask`, which torch compiles on a GPU."""

    attend: Callable[..., Any] = flex.flex_attention
    block_mask: Callable[..., Any] = flex.create_block_mask

    @classmethod
    def compiled(cls) -> FlexAttention:
        return cls(torch.compile(flex.flex_attention), torch.compile(flex.create_block_mask))

    def __call__(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        rows: AttentionMetadata,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        *,
        slopes: Tensor | None = None,
        chunk: int | None = None,
        biases: PositionBiases | None = None,
        stripes: Stripes | None = None,
    ) -> Tensor:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for packed in packed_rows(rows, k_pool.shape[1], window):
            key = ("flex", packed.first, window, chunk, stripes)
            if key not in rows.step_cache:
                rows.step_cache[key] = self._masked(packed, rows, q.shape[1], window, chunk, stripes)
            places, mask = rows.step_cache[key]
            queries, keys, values = (
                pad(x.transpose(0, 1), (0, 0, 0, count - len(x)))[None]
                for x, count in (
                    (q[packed.tokens], len(places.token_rows)),
                    (packed.of(k_pool), len(places.key_rows)),
                    (packed.of(v_pool), len(places.key_rows)),
                )
            )
            found = self.attend(
                queries,
                keys,
                values,
                score_mod=scores_of(places, softcap, slopes, biases),
                block_mask=mask,
                scale=scale,
                enable_gqa=queries.shape[1] != keys.shape[1],
            )
            out[packed.tokens] = found[0, :, : sum(packed.lens)].transpose(0, 1)
        return out

    def _masked(
        self,
        packed: PackedRows,
        rows: AttentionMetadata,
        heads: int,
        window: int | None,
        chunk: int | None,
        stripes: Stripes | None,
    ) -> tuple[Places, Any]:
        at = places_of(packed, rows)
        visible = mask_of(at, window, chunk, stripes)
        tokens, keys = len(at.token_rows), len(at.key_rows)
        every = None if stripes is None or not stripes.step else heads  # for which heads the mask differs
        return at, self.block_mask(visible, None, every, tokens, keys, device=at.key_rows.device, BLOCK_SIZE=BLOCK)


def places_of(packed: PackedRows, rows: AttentionMetadata) -> Places:
    """Where the tokens and keys of these rows are, filled up."""
    lens, key_lens = np.array(packed.lens), np.array(packed.key_lens)
    contexts = rows.contexts_host[packed.first : packed.end].astype(np.int64)
    order = np.arange(len(lens))
    token_rows, first_tokens = np.repeat(order, lens), np.cumsum(lens) - lens
    own = np.arange(len(token_rows)) + np.repeat(contexts - lens - first_tokens, lens)
    first_keys = np.cumsum(key_lens) - key_lens
    positions = np.arange(key_lens.sum()) + np.repeat(contexts - key_lens - first_keys, key_lens)
    tokens, keys = _filled(len(token_rows)), _filled(len(positions))
    ends = own + 1 if rows.visible_ends_host is None else rows.visible_ends_host[packed.tokens]

    def on_device(values: Any, size: int, rest: int) -> Tensor:
        every = np.full(size, rest, np.int32)
        every[: len(values)] = values
        return torch.from_numpy(every).to(packed.slots.device)

    return Places(
        token_rows=on_device(token_rows, tokens, -1),
        token_positions=on_device(own, tokens, 0),
        ends=on_device(ends, tokens, 0),
        key_rows=on_device(np.repeat(order, key_lens), keys, -2),
        key_positions=on_device(positions, keys, 0),
    )


def _filled(count: int) -> int:
    return -(-count // BLOCK) * BLOCK
