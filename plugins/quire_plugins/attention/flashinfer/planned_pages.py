"""The pages of a step as FlashInfer takes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire_kernels.ops import AttentionMetadata


@dataclass(frozen=True, slots=True)
class PlannedPages:
    """Arguments of `plan`: int32, on the CPU but for `indices`, since a plan is made there.

    qo_indptr [R + 1]: the first token of each row. kv_indptr [R + 1]: where its pages begin in `indices`. indices: the
    pages of all rows, one after the other. last_page_len [R]: tokens in each row's last page, at least 1.
    """

    qo_indptr: Tensor
    kv_indptr: Tensor
    indices: Tensor
    last_page_len: Tensor


def planned_pages(rows: AttentionMetadata, page_size: int) -> PlannedPages:
    contexts = rows.contexts_host.astype(np.int64)
    counts = -(-contexts // page_size)
    starts = np.cumsum([0, *counts])
    columns = np.arange(starts[-1]) - np.repeat(starts[:-1], counts)
    at = torch.from_numpy(np.stack((np.repeat(np.arange(len(counts)), counts), columns))).to(rows.pages.device)
    return PlannedPages(
        qo_indptr=_int32(np.cumsum([0, *rows.lens_host])),
        kv_indptr=_int32(starts),
        indices=rows.pages[at[0], at[1]],
        last_page_len=_int32(contexts - (counts - 1) * page_size),
    )


def _int32(values: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Tensor:
    return torch.from_numpy(values.astype(np.int32))
