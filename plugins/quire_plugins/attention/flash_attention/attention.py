"""`paged_attention` by FlashAttention, which reads Quire's pages and page tables as they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from quire_kernels.candidates.capture import capturable
from quire_kernels.ops import AttentionMetadata
from quire_plugins.attention.other_calls import attention_on


@capturable
def paged_attention(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    rows: AttentionMetadata,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    *,
    slopes: Tensor | None = None,
) -> Tensor:
    """A step of single tokens reads nothing on the CPU, and rows whose context is 0 give zeros: it can be captured."""
    if rows.visible_ends is not None:
        return attention_on(q.device)(q, k_pool, v_pool, rows, scale, window, softcap, slopes=slopes)
    options = {
        "softmax_scale": scale,
        "causal": True,
        "window_size": (-1, -1) if window is None else (window - 1, 0),
        "softcap": softcap or 0.0,
    }
    with_kvcache, varlen = _functions(q.device)
    if varlen is None:
        paged = {"cache_seqlens": rows.contexts, "page_table": rows.pages}
        found: Tensor = with_kvcache(
            q, k_pool, v_pool, cu_seqlens_q=rows.query_starts, max_seqlen_q=rows.max_query, **paged, **options
        )
        return found
    options["alibi_slopes"] = slopes
    if rows.max_query == 1:
        paged = {"cache_seqlens": rows.contexts, "block_table": rows.pages}
        single: Tensor = with_kvcache(q[:, None], k_pool, v_pool, **paged, **options)
        return single[:, 0]
    ends = key_starts(rows)
    every: Tensor = varlen(
        q, k_pool, v_pool, rows.query_starts, ends, rows.max_query, rows.max_context, block_table=rows.pages, **options
    )
    return every


def key_starts(rows: AttentionMetadata) -> Tensor:
    """int32 [R + 1]: where the keys of each row would begin side by side, of which the function reads the lengths."""
    if "flash-attn" not in rows.step_cache:
        rows.step_cache["flash-attn"] = torch.nn.functional.pad(rows.contexts.cumsum(0, dtype=torch.int32), (1, 0))
    found: Tensor = rows.step_cache["flash-attn"]
    return found


@cache
def _functions(device: torch.device) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    """`flash_attn_with_kvcache`, and `flash_attn_varlen_func` of FlashAttention 2; None: the first is that of 3."""
    if find_spec("flash_attn_interface") and torch.cuda.get_device_capability(device) == (9, 0):
        return import_module("flash_attn_interface").flash_attn_with_kvcache, None
    second = import_module("flash_attn")
    return second.flash_attn_with_kvcache, second.flash_attn_varlen_func
