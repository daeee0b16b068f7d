"""Towers: rows of embeddings made of media, kept while seqs compute the positions that they fill.

A medium's tower runs when the first of its positions that is not in the cache is scheduled, and alone, so that
its rows do not depend on neighbours. The rows go when its last position is computed, so of each seq at most
those of one medium stay from step to step. It knows no modality; the architecture's plugin does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.counting import call_plugin
from quire.engine.load import Loaded
from quire.errors import PluginFailed, QuireError
from quire.records import Registry
from quire.types import Chunk, Media, SeqStart
from quire_models import MediaRows


@dataclass(frozen=True, slots=True)
class StepMedia:
    """Rows of a step: rows[i] ([M, width], on the device) belongs to the step's token index[i] (ascending)."""

    index: NDArray[np.int64]
    rows: Tensor

    def all(self) -> MediaRows:
        """For a forward of the whole step."""
        return MediaRows(torch.from_numpy(self.index).to(self.rows.device), self.rows)

    def one(self, token: int) -> MediaRows | None:
        """For a forward of this token alone."""
        at = int(np.searchsorted(self.index, token))
        if at == len(self.index) or self.index[at] != token:
            return None
        return MediaRows(torch.zeros(1, dtype=torch.int64, device=self.rows.device), self.rows[at : at + 1])


@dataclass(slots=True, eq=False)
class _Ahead:
    """The media of a seq that are not yet computed, the nearest first; `rows`: of that one, if its tower ran."""

    media: list[Media]
    rows: Tensor | None = None


class Towers:
    """Runs the tower of one model for the seqs in flight."""

    def __init__(self, loaded: Loaded, registry: Registry) -> None:
        self._tower = loaded.module.tower
        self._width = loaded.decoder.row_width
        self._device, self._dtype = loaded.device, loaded.dtype
        self._registry = registry
        self._plugin = registry.plugin_of("quire_architectures", loaded.info.architecture)
        self._ahead: dict[int, _Ahead] = {}

    def start(self, start: SeqStart) -> None:
        """Remember the media of a seq."""
        if start.media:
            self._ahead[start.seq_id] = _Ahead(list(start.media))

    def end(self, seq_id: int) -> None:
        """Forget a seq, if it is known."""
        self._ahead.pop(seq_id, None)

    def clear(self) -> None:
        """Forget every seq."""
        self._ahead.clear()

    def rows(self, chunks: Sequence[Chunk], starts: NDArray[np.int64]) -> tuple[StepMedia | None, dict[int, str]]:
        """Rows for the chunks' tokens, the first of chunk i being the step's starts[i]; what went wrong, by seq."""
        failures: dict[int, str] = {}
        if not self._ahead:
            return None, failures
        index: list[NDArray[np.int64]] = []
        rows: list[Tensor] = []
        for chunk, first in zip(chunks, starts, strict=False):
            ahead = self._ahead.get(chunk.seq_id)
            if ahead is None:
                continue
            try:
                found = self._of_chunk(ahead, chunk)
            except QuireError as error:
                failures[chunk.seq_id] = error.message
                continue
            for begin, some in found:
                index.append(np.arange(begin, begin + len(some), dtype=np.int64) + int(first) - chunk.start)
                rows.append(some)
            if not ahead.media:
                self.end(chunk.seq_id)
        return (StepMedia(np.concatenate(index), torch.cat(rows)) if rows else None), failures

    def _of_chunk(self, ahead: _Ahead, chunk: Chunk) -> list[tuple[int, Tensor]]:
        """Runs of rows in a chunk: the position of the first, and the rows."""
        found = []
        end = chunk.start + len(chunk.token_ids)
        while ahead.media and ahead.media[0].start < end:
            medium = ahead.media[0]
            low, high = max(medium.start, chunk.start), min(medium.start + medium.length, end)
            if low < high:
                if ahead.rows is None:
                    ahead.rows = self._run(medium)
                found.append((low, ahead.rows[low - medium.start : high - medium.start]))
            if medium.start + medium.length > end:
                break
            del ahead.media[0]
            ahead.rows = None
        return found

    def _run(self, medium: Media) -> Tensor:
        """All rows of a medium: [length, width]."""
        rows = call_plugin(self._registry, self._plugin, self._call, medium)
        wanted = (medium.length, self._width)
        if not isinstance(rows, Tensor) or tuple(rows.shape) != wanted:
            got = list(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
            raise PluginFailed(
                f"Plugin {self._plugin!r}: {medium.modality} that became {medium.length} tokens needs rows of shape "
                f"{list(wanted)}; the tower gave {got}."
            )
        return rows

    def _call(self, medium: Media) -> object:
        assert self._tower is not None, "a model without a tower takes no media"
        tensors = {
            name: tensor.to(self._device, self._dtype if tensor.is_floating_point() else tensor.dtype)
            for name, tensor in medium.tensors.items()
        }
        return self._tower(**tensors)
