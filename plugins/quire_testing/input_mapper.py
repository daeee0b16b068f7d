"""Conformance of input mappers: an item has as many ids as the tower returns rows for its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.records import Architecture, Context, InputMapper, MappedMedia, MappedText
from quire_kernels.select import reference
from quire_models import Items, TowerCall
from quire_models.loading import checkpoint
from quire_models.loading.mapping import process_weights
from quire_models.modules.builder import ModuleBuilder
from quire_testing.require import require


def check_input_mapper(
    record: InputMapper,
    architecture: Architecture,
    config: Any,
    items: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    folder: Path | None = None,
) -> None:
    """Each item has as many ids as the tower returns rows, and the same ids and rows every time.

    The tower must return the same rows for an item alone and among the other items. config: the model's parsed config,
    as `decoder` and `tower` receive it. items: decoded media. folder: of the model, for mappers that read its files.
    """
    require(record.architecture == architecture.name, f"{record.name} is for {record.architecture}.")
    require(architecture.tower is not None, f"{architecture.name} has no tower, so media have no embeddings.")
    assert architecture.tower is not None
    decoder = architecture.decoder(config)
    make = ModuleBuilder(reference(), torch.float32, torch.device("cpu"))
    tower = architecture.tower(config).build(decoder.row_width, make)
    for parameter in tower.parameters():
        parameter.data.normal_(0, 0.1, generator=torch.Generator().manual_seed(0))
    process_weights(tower)
    context = Context(
        options=options or {},
        tokenizer=tokenizer,
        vocab_size=decoder.vocab,
        config=checkpoint.as_mapping(config),
        folder=None if folder is None else str(folder),
    )
    mapper = record.build(context)
    inputs, alone = [], []
    for item in items:
        first, second = mapper.map(item), mapper.map(item)
        media = _media(first)
        require(len(media) == len(_media(second)), "The same item becomes other media the second time.")
        for mapped, again in zip(media, _media(second), strict=True):
            given = _tensors(mapped, again)
            inputs.append(given)
            (rows,) = _run(tower, inputs[-1:])
            alone.append(rows)
            count = len(mapped.ids) if mapped.rows_at is None else len(mapped.rows_at)
            require(
                tuple(rows.shape) == (count, decoder.row_width),
                f"{count} ids of width {decoder.row_width}, but the tower returns {tuple(rows.shape)}.",
            )
            require(all(0 <= i < decoder.vocab for i in mapped.ids), "Ids must be within the vocabulary.")
            _check_positions(mapped, decoder.position_axes)
    for rows, among in zip(alone, _run(tower, inputs), strict=True):
        require(
            rows.shape == among.shape and torch.allclose(rows, among, rtol=1e-4, atol=1e-4 * float(rows.abs().max())),
            "The tower returns other rows for an item among others than for the item alone.",
        )


def _media(part: MappedMedia | MappedText) -> Sequence[MappedMedia]:
    """The media of one item."""
    if not isinstance(part, MappedText):
        return [part]
    require(
        part.text.count(part.placeholder) == len(part.media) > 0,
        f"{part.placeholder!r} must occur in the text once for each of the media.",
    )
    return part.media


def _tensors(mapped: MappedMedia, again: MappedMedia) -> dict[str, Tensor]:
    """The tensors of an item that was mapped twice."""
    require(list(mapped.ids) == list(again.ids), "The same item has other ids the second time.")
    tensors = {name: torch.as_tensor(value) for name, value in mapped.tensors.items()}
    for name, tensor in tensors.items():
        same = torch.equal(tensor, torch.as_tensor(again.tensors[name]))
        require(same, f"The same item has another {name} the second time.")
    return tensors


def _check_positions(mapped: MappedMedia, axes: int) -> None:
    if mapped.positions is not None:
        shape, wanted = np.shape(mapped.positions), (axes, len(mapped.ids))
        require(shape == wanted, f"{len(mapped.ids)} ids of a model with {axes} axes, but positions of shape {shape}.")


def _run(tower: torch.nn.Module, inputs: Items) -> list[Tensor]:
    """Rows of each item, from one call of the tower."""
    with torch.no_grad():
        rows = tower(inputs, TowerCall("cpu"))
    require(len(rows) == len(inputs), f"The tower received {len(inputs)} media, and returned rows of {len(rows)}.")
    return list(rows)
