"""Sampled tokens on the device, where the next step reads them while the host does not know them yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.types import Chunk


class SampleCopy:
    """The samples of one step on the host, in pinned memory. size: the most of a step."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        self._tokens = torch.zeros(size, dtype=torch.int64, pin_memory=self._copied is not None)

    def send(self, tokens: Tensor) -> None:
        """Copy these tokens, int64 [N], in the order of the device's stream."""
        self._tokens[: len(tokens)].copy_(tokens, non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def read(self, count: int) -> list[int]:
        """The first tokens that were sent, once they are there."""
        if self._copied is not None:
            self._copied.synchronize()
        found: list[int] = self._tokens[:count].tolist()
        return found


class SampledTokens:
    """What the latest step sampled, in `latest`: int64 [most rows], on the device, -1 where no token was possible.

    A step that is launched before the host knows these tokens has in the place of each the reference -1 - i to
    `latest[i]`. max_unread: steps whose tokens the host reads after the next ones were launched.
    """

    def __init__(self, latest: Tensor, max_unread: int) -> None:
        self.latest = latest
        self._rows: Mapping[int, int] = {}
        self._copies = cycle([SampleCopy(len(latest), latest.device) for _ in range(max_unread)])

    def refer(self, tokens: NDArray[np.int64], chunks: Sequence[Chunk], starts: NDArray[np.int64]) -> None:
        """Put references in the place of `UNKNOWN` among the tokens of these chunks. starts: their first tokens."""
        unknown = np.flatnonzero(tokens < 0)
        if len(unknown):
            of_tokens = np.searchsorted(starts, unknown, side="right") - 1
            tokens[unknown] = [-1 - self._rows[chunks[chunk].seq_id] for chunk in of_tokens.tolist()]

    def find(self, tokens: Tensor) -> Tensor:
        """The tokens of a step on the device, int64 [T], with references replaced by what they refer to."""
        found = self.latest[(-1 - tokens).clamp_(min=0)].clamp_(min=0)
        return torch.where(tokens < 0, found, tokens)

    def keep(self, tokens: Tensor, seq_ids: Sequence[int]) -> Callable[[], list[int]]:
        """Keep the tokens of a step, int64 [len(seq_ids)], and send them to the host. Returns what waits for them."""
        count, copy = len(seq_ids), next(self._copies)
        self._rows = dict(zip(seq_ids, range(count), strict=True))
        if count and tokens.data_ptr() != self.latest.data_ptr():
            self.latest[:count].copy_(tokens)
        copy.send(self.latest[:count])
        return partial(copy.read, count)
