"""Runs a model's tower on batches of media, limited by the number of rows.

If a batch fails, its media run one by one, so that an error affects only the medium that causes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypeAlias

from torch import Tensor

from quire.engine.adapters.mapping import AdapterMapping
from quire.engine.loading.load import LoadedModel
from quire.errors import PluginFailed, QuireError
from quire.hooks.call_stats import call_plugin
from quire.records import Registry
from quire.types import Media
from quire_models import TowerCall

SeqMedium: TypeAlias = tuple[int, Media]
"""A medium, and the seq_id that needs it, whose adapters apply to it."""


class TowerRunner:
    """The tower of one model. max_rows: limit of embedding rows of a call; a larger medium has a call of its own."""

    def __init__(self, loaded: LoadedModel, registry: Registry, adapters: AdapterMapping, max_rows: int) -> None:
        self._tower = loaded.module.tower
        self._width = loaded.decoder.row_width
        self._device, self._dtype = loaded.device, loaded.dtype
        self._registry, self._adapters = registry, adapters
        self._plugin = registry.plugin_of("quire_architectures", loaded.info.architecture)
        self._max_rows = max_rows

    def encode(self, media: Sequence[SeqMedium]) -> list[Tensor | QuireError]:
        """The rows of each medium, [length, width], or its error."""
        return [rows for batch in self._batches(media) for rows in self._run(batch)]

    def _batches(self, media: Sequence[SeqMedium]) -> Iterator[list[SeqMedium]]:
        batch: list[SeqMedium] = []
        for each in media:
            if batch and sum(medium.num_rows for _, medium in batch) + each[1].num_rows > self._max_rows:
                yield batch
                batch = []
            batch.append(each)
        if batch:
            yield batch

    def _run(self, batch: Sequence[SeqMedium]) -> list[Tensor | QuireError]:
        try:
            output = call_plugin(self._registry, self._plugin, self._call, batch)
            return self._validated(batch, output)
        except QuireError as error:
            if len(batch) == 1:
                return [error]
        return [rows for each in batch for rows in self._run([each])]

    def _call(self, batch: Sequence[SeqMedium]) -> object:
        assert self._tower is not None, "a model without a tower takes no media"
        items = [
            {
                name: tensor.to(self._device, self._dtype if tensor.is_floating_point() else tensor.dtype)
                for name, tensor in medium.tensors.items()
            }
            for _, medium in batch
        ]
        bind = partial(self._adapters.bind_tower, [seq_id for seq_id, _ in batch])
        return self._tower(items, TowerCall(self._device, bind))

    def _validated(self, batch: Sequence[SeqMedium], output: object) -> list[Tensor | QuireError]:
        """The tower's output as a tensor in its own memory for each medium. Raises PluginFailed if it is malformed."""
        if not isinstance(output, list) or len(output) != len(batch):
            got = f"a list of {len(output)}" if isinstance(output, list) else type(output).__name__
            raise PluginFailed(
                f"Plugin {self._plugin!r}: a tower must return a list of {len(batch)} tensors; got {got}."
            )
        for (_, medium), rows in zip(batch, output, strict=True):
            expected = (medium.num_rows, self._width)
            if not isinstance(rows, Tensor) or tuple(rows.shape) != expected:
                got = str(list(rows.shape)) if isinstance(rows, Tensor) else type(rows).__name__
                raise PluginFailed(
                    f"Plugin {self._plugin!r}: {medium.modality} that became {medium.num_rows} tokens needs rows of "
                    f"shape {list(expected)}; the tower returned {got}."
                )
        return [_own_memory(rows) for rows in output]


def _own_memory(rows: Tensor) -> Tensor:
    """The rows, copied if they are a view, so that they keep no larger tensor alive."""
    return rows.clone() if rows.untyped_storage().nbytes() > rows.numel() * rows.element_size() else rows
