"""The memory that captured steps read: at fixed addresses for each bucket, filled by one copy from pinned memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire_models.step.upload import ALIGNMENT, UploadMemory, aligned

TokenAdapters = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
"""Tokens with an adapter, the slot of each, and its weight."""


class DecodeInputs(Protocol):
    """A step, as `quire.engine.runner.input_batch.StepInputs` describes it."""

    @property
    def tokens(self) -> NDArray[np.int64]: ...

    @property
    def positions(self) -> NDArray[np.int64]: ...

    @property
    def slot_mapping(self) -> NDArray[np.int64]: ...

    @property
    def contexts(self) -> NDArray[np.int64]: ...

    @property
    def pages(self) -> NDArray[np.int32]: ...

    @property
    def prompt_lens(self) -> NDArray[np.int32]: ...

    @property
    def rope_positions(self) -> NDArray[np.int64] | None: ...

    @property
    def token_types(self) -> NDArray[np.int64] | None: ...

    @property
    def ends(self) -> NDArray[np.int32] | None: ...

    @property
    def sources(self) -> NDArray[np.int32] | None: ...

    @property
    def state_slots(self) -> NDArray[np.int64] | None: ...


@dataclass(frozen=True, slots=True)
class _Fields:
    """One bucket's arrays, in one block of memory.

    int64 [bucket]: tokens, sources (where to find each token), positions, slots, state_slots, lengths; rope [axes,
    bucket]; width [1], columns of `pages`. int32: contexts, adapter_slots [bucket]; pages [bucket * most columns], of
    which the first rows · width are filled. float32: adapter_weights [bucket].
    """

    tokens: Any
    sources: Any
    positions: Any
    slots: Any
    state_slots: Any
    lengths: Any
    rope: Any
    width: Any
    contexts: Any
    adapter_slots: Any
    adapter_weights: Any
    pages: Any
    begin_of_pages: int


class GraphInputs:
    """Inputs of steps of up to `max_rows` rows, each with one token and up to `max_pages` pages.

    position_axes: of rotary positions; with one, they are `positions`. max_sampled: of the tokens that a step samples.
    sampled: int64 [max_sampled], on the device, right before the inputs, so that one index finds a token in either.
    """

    def __init__(
        self, max_rows: int, max_pages: int, device: torch.device, position_axes: int = 1, max_sampled: int = 0
    ) -> None:
        self.max_pages, self._axes = max_pages, position_axes
        self._begin = aligned(8 * max_sampled)
        size = self._begin + 8 * max_rows * (6 + position_axes) + 4 * max_rows * (3 + max_pages) + 12 * ALIGNMENT
        self._memory = UploadMemory(size, device)
        self.sampled = self._memory.device[: 8 * max_sampled].view(torch.int64)
        self._own = self._begin // 8 + np.arange(max_rows)
        self._host_fields, self._device_fields = cache(self._of_host), cache(self._of_device)
        self._rows = torch.arange(max_rows, device=device)[:, None]
        self._columns = torch.arange(max_pages, device=device)

    def fill(self, bucket: int, inputs: DecodeInputs, adapters: TokenAdapters | None = None) -> None:
        """Copy a step to the device; rows beyond its own have no context and no slots."""
        self._memory.wait()
        fields, rows, width = self._host_fields(bucket), len(inputs.tokens), inputs.pages.shape[1]
        fields.tokens[:rows], fields.tokens[rows:] = inputs.tokens, 0
        fields.sources[:] = self._own[:bucket]
        np.copyto(fields.sources[:rows], -1 - inputs.tokens, where=inputs.tokens < 0)
        fields.positions[:rows], fields.positions[rows:] = inputs.positions, 0
        fields.slots[:rows], fields.slots[rows:] = inputs.slot_mapping, -1
        if inputs.state_slots is not None:
            fields.state_slots[:rows], fields.state_slots[rows:] = inputs.state_slots, -1
        np.maximum(inputs.prompt_lens, inputs.positions + 1, out=fields.lengths[:rows])
        fields.contexts[:rows], fields.contexts[rows:] = inputs.contexts, 0
        fields.adapter_slots[:] = -1
        if adapters is not None:
            tokens, slots, weights = adapters
            fields.adapter_slots[tokens], fields.adapter_weights[tokens] = slots, weights
        if self._axes > 1:
            fields.rope[:, :rows] = inputs.positions if inputs.rope_positions is None else inputs.rope_positions
        fields.width[0] = width
        fields.pages[: rows * width] = inputs.pages.reshape(-1)
        self._memory.send(fields.begin_of_pages + 4 * rows * width, self._begin)

    def on_device(self, bucket: int) -> _Fields:
        """Tensors of a bucket; `pages` are packed."""
        return self._device_fields(bucket)

    def tokens(self, bucket: int) -> Tensor:
        """int64 [bucket], some of them found on the device among those that the step before sampled."""
        every = self._memory.device[: self._begin + 8 * bucket].view(torch.int64)
        return every.index_select(0, self.on_device(bucket).sources).clamp_(min=0)

    def page_table(self, bucket: int) -> Tensor:
        """int32 [bucket, max_pages], computed on the device from the packed pages."""
        fields = self.on_device(bucket)
        at = torch.addcmul(self._columns, self._rows[:bucket], fields.width).clamp_(max=len(fields.pages) - 1)
        return fields.pages[at]

    def _of_host(self, bucket: int) -> _Fields:
        def view(begin: int, end: int, dtype: type) -> NDArray[Any]:
            return self._memory.host[begin:end].view(dtype)

        return self._fields(bucket, view, np.int64, np.int32, np.float32)

    def _of_device(self, bucket: int) -> _Fields:
        def view(begin: int, end: int, dtype: torch.dtype) -> Tensor:
            return self._memory.device[begin:end].view(dtype)

        return self._fields(bucket, view, torch.int64, torch.int32, torch.float32)

    def _fields(self, bucket: int, view: Any, int64: Any, int32: Any, float32: Any) -> _Fields:
        long, short = 8 * bucket, 4 * bucket
        at = _offsets(self._begin, *(long,) * 6, long * self._axes, 8, short, short, short, short * self.max_pages)
        tokens, sources, positions, slots, state_slots, lengths, rope, width, *rest = at
        contexts, adapter_slots, adapter_weights, pages = rest
        return _Fields(
            tokens=view(*tokens, int64),
            sources=view(*sources, int64),
            positions=view(*positions, int64),
            slots=view(*slots, int64),
            state_slots=view(*state_slots, int64),
            lengths=view(*lengths, int64),
            rope=view(*rope, int64).reshape(self._axes, bucket),
            width=view(*width, int64),
            contexts=view(*contexts, int32),
            adapter_slots=view(*adapter_slots, int32),
            adapter_weights=view(*adapter_weights, float32),
            pages=view(*pages, int32),
            begin_of_pages=pages[0],
        )


def _offsets(begin: int, *sizes: int) -> Iterator[tuple[int, int]]:
    """Begin and end of arrays that follow each other."""
    for size in sizes:
        yield begin, begin + size
        begin += aligned(size)
