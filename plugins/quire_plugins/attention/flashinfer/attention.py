"""`paged_attention` by FlashInfer: a plan for each step and kind of block, which all blocks of that kind share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from quire_kernels.ops import AttentionMetadata
from quire_plugins.attention.flashinfer.planned_pages import planned_pages
from quire_plugins.attention.other_calls import attention_on

WORKSPACE_BYTES = 128 << 20
"""Memory for results of splits, as large as FlashInfer's documentation says."""


@dataclass(frozen=True)
class FlashInferAttention:
    """The op of one model.

    A wrapper keeps one plan, so there is one for each kind of block: window, soft cap, scale and shapes.
    """

    _workspaces: dict[torch.device, Tensor] = field(default_factory=dict)
    _wrappers: dict[Any, Any] = field(default_factory=dict)

    def __call__(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        rows: AttentionMetadata,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        **options: Any,
    ) -> Tensor:
        if rows.visible_ends is not None:
            return attention_on(q.device)(q, k_pool, v_pool, rows, scale, window, softcap, **options)
        kind = (q.device, q.dtype, *q.shape[1:], *k_pool.shape[1:], scale, window, softcap)
        key = ("flashinfer", id(self), kind)
        if key not in rows.step_cache:
            rows.step_cache[key] = self._planned(kind, q, k_pool, rows)
        found: Tensor = rows.step_cache[key].run(q.contiguous(), (k_pool, v_pool))
        return found

    def _planned(self, kind: Any, q: Tensor, k_pool: Tensor, rows: AttentionMetadata) -> Any:
        decodes = rows.max_query == 1
        if (decodes, kind) not in self._wrappers:
            self._wrappers[decodes, kind] = self._wrapper(decodes, q.device), torch.cuda.Event()
        wrapper, copied = self._wrappers[decodes, kind]
        copied.synchronize()  # the plan before is read from the same pinned memory
        heads, dim = q.shape[1:]
        page_size, kv_heads = k_pool.shape[1:3]
        scale, window, softcap = kind[-3:]
        tables = planned_pages(rows, page_size)
        paged = tables.kv_indptr, tables.indices, tables.last_page_len
        options = {
            "window_left": -1 if window is None else window - 1,
            "logits_soft_cap": softcap,
            "sm_scale": scale,
            "q_data_type": q.dtype,
            "kv_data_type": k_pool.dtype,
        }
        if decodes:
            wrapper.plan(*paged, heads, kv_heads, dim, page_size, **options)
        else:
            wrapper.plan(tables.qo_indptr, *paged, heads, kv_heads, dim, page_size, causal=True, **options)
        copied.record()
        return wrapper

    def _wrapper(self, decodes: bool, device: torch.device) -> Any:
        import flashinfer

        if device not in self._workspaces:
            self._workspaces[device] = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        workspace = self._workspaces[device]
        if decodes:
            return flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
        return flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
