"""Steps that hypothesis draws, and which keys the reference lets each token attend to."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from quire_kernels import reference
from quire_kernels.ops import AttentionMetadata
from quire_testing.ops.attention_cases import rows_of
from quire_testing.ops.cases import RandomInputs


@dataclass(frozen=True)
class DrawnStep:
    rows: AttentionMetadata
    page_size: int
    pages: int
    window: int | None

    def visible(self) -> Tensor:
        """By the reference: whether a token attends to a slot of the pool, bool [T, pages * page_size]."""
        slots, tokens = self.pages * self.page_size, int(self.rows.lens_host.sum())
        keys = torch.zeros(self.pages, self.page_size, 1, 1)
        values = torch.eye(slots).view(self.pages, self.page_size, 1, slots)
        out = reference.paged_attention(torch.zeros(tokens, 1, 1), keys, values, self.rows, 1.0, self.window)
        return out[:, 0] > 0

    def singles(self) -> DrawnStep:
        """The same sequences in a step of single tokens."""
        ones, count = np.ones_like(self.rows.lens_host), len(self.rows.lens_host)
        starts = torch.arange(count + 1, dtype=torch.int32)
        return replace(self, rows=replace(self.rows, query_starts=starts, lens_host=ones, max_query=1, step_cache={}))


@st.composite
def steps(
    draw: st.DrawFn, page_sizes: tuple[int, ...] = (1, 4, 16), longest: int = 9, most_past: int = 40
) -> DrawnStep:
    """Rows of up to `longest` tokens after up to `most_past` others, with and without a window."""
    lens = draw(st.lists(st.integers(1, longest), min_size=1, max_size=4))
    contexts = [length + draw(st.integers(0, most_past)) for length in lens]
    page_size = draw(st.sampled_from(page_sizes))
    inputs = RandomInputs(torch.float32, torch.device("cpu"), torch.Generator().manual_seed(len(lens)), page_size)
    rows, pages = rows_of(inputs, lens, contexts)
    return DrawnStep(rows, page_size, pages, draw(st.none() | st.integers(1, 20)))
