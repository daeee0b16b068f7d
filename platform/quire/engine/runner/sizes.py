"""Sizes of the runner's tables and KV caches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RunnerSizes:
    """Sizes for one model. num_host_…: for swapped sequences. max_tokens and max_rows: of a step.

    graph_rows: rows of the largest decode step that is captured as a CUDA graph, 0 = none is.
    """

    num_pages: int
    num_host_pages: int
    page_size: int
    max_tokens: int
    max_rows: int
    max_model_len: int
    num_state_slots: int = 0
    num_host_state_slots: int = 0
    graph_rows: int = 0

    @property
    def max_pages(self) -> int:
        """Pages of the longest sequence."""
        return -(-self.max_model_len // self.page_size)
