"""Biases of xformers, which say which keys each token of a step attends to."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from quire_kernels.ops import AttentionMetadata
from quire_plugins.attention.packed_rows import PackedRows


def packed_bias(packed: PackedRows, window: int | None, device: torch.device) -> Any:
    """For keys side by side: each token attends to those of its row up to its own, at most `window` of them."""
    from xformers.ops.fmha import attn_bias

    found = attn_bias.BlockDiagonalMask.from_seqlens(packed.lens, packed.key_lens, device=device)
    return (
        found.make_causal_from_bottomright() if window is None else found.make_local_attention_from_bottomright(window)
    )


def paged_bias(rows: AttentionMetadata, page_size: int) -> Any:
    """For keys in pages: each token attends to those of its row up to its own."""
    from xformers.ops.fmha import attn_bias

    return attn_bias.PagedBlockDiagonalCausalWithOffsetPaddedKeysMask.from_seqlens(
        q_seqlen=_ints(rows.lens_host),
        kv_seqlen=_ints(rows.contexts_host),
        block_tables=rows.pages,
        page_size=page_size,
        device=rows.pages.device,
    )


def _ints(values: np.ndarray[Any, np.dtype[np.int32]]) -> list[int]:
    found: list[int] = values.tolist()
    return found
