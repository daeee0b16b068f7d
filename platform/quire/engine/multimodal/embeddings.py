"""Computes the embedding rows of media and keeps them while sequences compute the positions that they fill.

The tower runs for a medium when the first of its positions that is not in the prefix cache is scheduled. All media that
a step needs are batched. A seq holds the rows of a medium until its last position is computed, so it holds the rows of
at most one medium between steps. Released rows may stay in the `encoder_cache`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.engine.adapters.mapping import AdapterMapping
from quire.engine.loading.load import LoadedModel
from quire.engine.multimodal.encoder_cache import EncoderCache, MediaKey
from quire.engine.multimodal.tower_runner import TowerRunner
from quire.errors import QuireError
from quire.records import Registry
from quire.settings.model_config import ModelConfig
from quire.types import Chunk, EngineStats, Media, NewSeq
from quire_models import MediaRows


@dataclass(frozen=True, slots=True)
class StepMedia:
    """The embedding rows of a step: rows[i] ([M, width], on the device) is for the step's token index[i] (sorted)."""

    index: NDArray[np.int64]
    rows: Tensor

    def all(self) -> MediaRows:
        """The rows for a forward of the whole step."""
        return MediaRows(torch.from_numpy(self.index).to(self.rows.device), self.rows)

    def some(self, begin: int, end: int) -> MediaRows | None:
        """The rows for a forward of the tokens begin … end - 1 only; None if there are none."""
        low, high = np.searchsorted(self.index, (begin, end))
        if low == high:
            return None
        index = torch.from_numpy(self.index[low:high] - begin)
        return MediaRows(index.to(self.rows.device), self.rows[low:high])


@dataclass(slots=True, eq=False)
class _PendingMedia:
    """The media of a seq whose positions are not all computed, in order. held: the key of the first, if it is held."""

    media: list[Media]
    held: MediaKey | None = None


class _Need(NamedTuple):
    """Rows that a step needs: of a medium, for the seq's positions low … high - 1, which are tokens from `token` on."""

    seq_id: int
    medium: Media
    key: MediaKey
    low: int
    high: int
    token: int

    def places(self) -> tuple[NDArray[np.int64], slice]:
        """Tokens of the step, int64 [n], and which of the medium's rows they need."""
        low, high = self.low - self.medium.start, self.high - self.medium.start
        at = self.medium.rows_at
        if at is None:
            return np.arange(high - low, dtype=np.int64) + self.token, slice(low, high)
        first, end = np.searchsorted(at, (low, high))
        return at[first:end] + (self.token - low), slice(first, end)


class MultimodalEmbeddings:
    """The embedding rows of all sequences of one model. cache_bytes: size of the `EncoderCache`."""

    def __init__(self, tower_runner: TowerRunner, adapters: AdapterMapping, cache_bytes: int) -> None:
        self._tower_runner, self._adapters = tower_runner, adapters
        self._cache = EncoderCache(cache_bytes)
        self._pending: dict[int, _PendingMedia] = {}
        self._num_encoded = self._num_cached = 0

    def start(self, start: NewSeq) -> None:
        if start.media:
            self._pending[start.seq_id] = _PendingMedia(list(start.media))

    def end(self, seq_id: int) -> None:
        """Release what a seq holds; does nothing for a seq without media."""
        pending = self._pending.pop(seq_id, None)
        if pending is not None:
            self._release(pending)

    def clear(self) -> None:
        self._pending.clear()
        self._cache.clear()

    @classmethod
    def from_model(
        cls, loaded: LoadedModel, registry: Registry, adapters: AdapterMapping, config: ModelConfig
    ) -> MultimodalEmbeddings:
        """Built for a loaded model. With `batch_invariant` each medium is encoded in a call of its own."""
        stage = getattr(loaded.module, "stage", None)
        if stage is not None and not stage.has_tower:
            return MediaOfFirstStage(TowerRunner(loaded, registry, adapters, 1), adapters, 0)
        max_rows = 1 if config.batch_invariant else config.max_num_encoder_tokens
        return cls(TowerRunner(loaded, registry, adapters, max_rows), adapters, config.encoder_cache_bytes)

    def add_stats(self, stats: EngineStats) -> EngineStats:
        """The statistics with those of media."""
        return replace(
            stats,
            num_media_encoded_total=self._num_encoded,
            num_media_found_total=self._num_cached,
            num_encoder_cache_bytes=self._cache.num_bytes,
        )

    def rows(self, chunks: Sequence[Chunk], starts: NDArray[np.int64]) -> tuple[StepMedia | None, dict[int, str]]:
        """The rows for the chunks' tokens, and error messages by seq. starts: each chunk's first token in the step."""
        if not self._pending:
            return None, {}
        pairs = zip(chunks, starts, strict=False)
        needs = [need for chunk, first in pairs for need in self._needs(chunk, int(first))]
        fresh, errors = self._encode(needs)
        failures = {need.seq_id: errors[need.key].message for need in reversed(needs) if need.key in errors}
        found = [need for need in needs if need.seq_id not in failures]
        for need in found:  # all of them, before any is released
            self._cache.hold(need.key)
        places = [need.places() for need in found]
        rows = [self._cache.rows(need.key)[part] for need, (_, part) in zip(found, places, strict=True)]
        for need in found:
            self._update_held(need, fresh)
        for chunk in chunks:
            self._drop_computed(chunk.seq_id, chunk.start + len(chunk.token_ids))
        if not any(len(index) for index, _ in places):
            return None, failures
        return StepMedia(np.concatenate([index for index, _ in places]), torch.cat(rows)), failures

    def _needs(self, chunk: Chunk, first: int) -> Iterator[_Need]:
        """The rows that a chunk needs. first: its first token in the step."""
        pending = self._pending.get(chunk.seq_id)
        if pending is None:
            return
        end = chunk.start + len(chunk.token_ids)
        adapters = self._adapters.in_tower(chunk.seq_id)
        for medium in pending.media:
            if medium.start >= end:
                break
            low, high = max(medium.start, chunk.start), min(medium.start + medium.length, end)
            if low < high:
                key = MediaKey(medium.modality, medium.digest, medium.length, adapters)
                yield _Need(chunk.seq_id, medium, key, low, high, first + low - chunk.start)

    def _encode(self, needs: Sequence[_Need]) -> tuple[set[MediaKey], Mapping[MediaKey, QuireError]]:
        """Run the tower for media that are not cached. Returns the keys of new rows, and the errors."""
        missing = {need.key: need for need in needs if need.key not in self._cache}
        encoded = self._tower_runner.encode([(need.seq_id, need.medium) for need in missing.values()])
        fresh: set[MediaKey] = set()
        errors: dict[MediaKey, QuireError] = {}
        for key, rows in zip(missing, encoded, strict=True):
            if isinstance(rows, QuireError):
                errors[key] = rows
            else:
                self._cache.put(key, rows)
                fresh.add(key)
        self._num_encoded += len(fresh)
        return fresh, errors

    def _update_held(self, need: _Need, fresh: set[MediaKey]) -> None:
        """After the rows of a step were read: hold them only if later steps need rows of the same medium.

        fresh: keys that were encoded in this step and are not yet attributed to a seq; others count as cached.
        """
        pending = self._pending[need.seq_id]
        if pending.held is None and need.key not in fresh:
            self._num_cached += 1
        fresh.discard(need.key)
        self._release(pending)  # the hold of the step before, on the same key
        if need.high < need.medium.start + need.medium.length:
            pending.held = need.key
        else:
            self._cache.release(need.key)

    def _drop_computed(self, seq_id: int, end: int) -> None:
        """Drop the media of a seq whose positions are all before `end`, which are computed."""
        pending = self._pending.get(seq_id)
        while pending and pending.media and pending.media[0].start + pending.media[0].length <= end:
            del pending.media[0]
        if pending and not pending.media:
            self.end(seq_id)

    def _release(self, pending: _PendingMedia) -> None:
        if pending.held is not None:
            self._cache.release(pending.held)
            pending.held = None


class MediaOfFirstStage(MultimodalEmbeddings):
    """At a later stage of a model: the first one has the tower, and embeds."""

    def start(self, start: NewSeq) -> None:
        """Do nothing: no row is needed here."""

    def rows(self, chunks: Sequence[Chunk], starts: NDArray[np.int64]) -> tuple[StepMedia | None, dict[int, str]]:
        """None: errors arrive with the hidden states."""
        return None, {}
