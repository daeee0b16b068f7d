"""Attention within rows in batched torch calls: rows of similar length are padded and attended together.

Groups are built once per step and kept in `AttentionMetadata.step_cache` for the following blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from quire_kernels.attention import PositionBiases
from quire_kernels.ops import AttentionMetadata

PADDING = 1.2
"""Rows share a call if the shortest is padded to at most this times its own length; rows up to `SMALL` tokens always
may.
"""

SMALL = 16
"""Rows of up to so many tokens are not worth a call of their own."""

MAX_TOKENS = 1 << 16
"""Maximum tokens of a call, padding included; bounds the memory that a step needs."""

MAX_SCORES = 1 << 24
"""Maximum elements of a mask."""


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """Rows attended in one call, padded to the longest by repeating a row's last token.

    tokens: int64 [rows * longest], their indices in the step. mask: [rows or 1, 1, longest or 1, longest], added to the
    scores; None if every key is visible. kept: int64, which of the group's tokens are not padding; None: all.
    targets: int64, indices in the step of the tokens that are kept.
    """

    tokens: Tensor
    rows: int
    mask: Tensor | None
    kept: Tensor | None
    targets: Tensor


def row_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: AttentionMetadata,
    scale: float,
    window: int | None = None,
    biases: PositionBiases | None = None,
) -> Tensor:
    key = ("torch_row_attention", window, q.dtype)
    if key not in rows.step_cache:
        rows.step_cache[key] = [_group(members, rows, window, q) for members in _shared_calls(rows.lens_host)]
    groups: list[_RowGroup] = rows.step_cache[key]
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    for group in groups:
        found = _attend(q, k, v, group, scale, biases)
        out.index_copy_(0, group.targets, found if group.kept is None else found.index_select(0, group.kept))
    return out


def _attend(
    q: Tensor, k: Tensor, v: Tensor, group: _RowGroup, scale: float, biases: PositionBiases | None = None
) -> Tensor:
    """Attention output of a group's tokens, [rows * longest, H, D]."""
    q, k, v = (
        x.index_select(0, group.tokens).view(group.rows, -1, *x.shape[1:]).transpose(1, 2) for x in (q, k, v)
    )  # [rows, H or K, longest, D]
    grouped, mask = q.shape[1] != k.shape[1], group.mask
    if biases is not None:
        at = torch.arange(q.shape[2], device=q.device)
        added = biases.at(at - at[:, None]).to(q.dtype)
        mask = added[None] if mask is None else added + mask
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)
    return out.transpose(1, 2).flatten(0, 1)


def _shared_calls(lens: NDArray[np.int32]) -> Iterator[NDArray[np.int64]]:
    """Row indices that may share a call; rows without tokens are left out."""
    order = np.argsort(lens, kind="stable")[np.count_nonzero(lens == 0) :]
    while len(order):
        lengths = lens[order]
        near = lengths <= max(PADDING * lengths[0], SMALL)
        fits = np.arange(1, len(order) + 1) * lengths <= MAX_TOKENS
        fits &= np.arange(1, len(order) + 1) * lengths.astype(np.int64) ** 2 <= MAX_SCORES
        count = max(1, int(np.count_nonzero(near & fits)))
        yield order[:count]
        order = order[count:]


def _group(members: NDArray[np.int64], rows: AttentionMetadata, window: int | None, q: Tensor) -> _RowGroup:
    starts = np.concatenate(([0], np.cumsum(rows.lens_host)))[members]
    lengths = rows.lens_host[members]
    longest = int(lengths.max())
    at = np.arange(longest)
    is_token = at < lengths[:, None]  # [rows, longest]
    tokens = starts[:, None] + np.minimum(at, lengths[:, None] - 1)
    hidden = ~is_token[:, None, None, :]
    if window is not None and window < longest:
        hidden = hidden | (np.abs(at[:, None] - at) >= window)
        hidden &= is_token[:, None, :, None]  # a padding token must see some key, or its softmax is NaN
    mask = None
    if hidden.any():
        added = torch.zeros(hidden.shape, dtype=q.dtype)
        mask = added.masked_fill_(torch.from_numpy(hidden), -torch.inf).to(q.device)
    kept = None if is_token.all() else torch.from_numpy(np.flatnonzero(is_token)).to(q.device)
    targets = torch.from_numpy(tokens[is_token]).to(q.device)
    return _RowGroup(torch.from_numpy(tokens.reshape(-1)).to(q.device), len(members), mask, kept, targets)
