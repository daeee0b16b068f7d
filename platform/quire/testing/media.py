"""Conformance of input mappers: the number of ids is the number of rows that the tower returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.records import Architecture, Context, InputMapper, Mapped, Worded
from quire.testing.demand import demand
from quire_kernels.select import reference
from quire_models import Items, TowerCall, checkpoint
from quire_models.make import Make
from quire_models.mapping import prepare


def check_mapper(
    record: InputMapper,
    architecture: Architecture,
    config: Any,
    items: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    folder: Path | None = None,
) -> None:
    """Each item becomes as many ids as the architecture's tower returns rows for it, every time alike; and all items
    in one call of the tower give the rows that each gives alone.

    config: the model's parsed config, as `decoder` and `tower` receive it. items: decoded media. folder: the model's,
    for mappers that read more than its config.
    """
    demand(record.architecture == architecture.name, f"{record.name} is for {record.architecture}.")
    demand(architecture.tower is not None, f"{architecture.name} has no tower, so its media have nowhere to go.")
    assert architecture.tower is not None
    decoder = architecture.decoder(config)
    make = Make(reference(), torch.float32, torch.device("cpu"))
    tower = architecture.tower(config).build(decoder.row_width, make)
    for parameter in tower.parameters():
        parameter.data.normal_(0, 0.1, generator=torch.Generator().manual_seed(0))
    prepare(tower)
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
        demand(len(media) == len(_media(second)), "The same item gives other media the second time.")
        for mapped, again in zip(media, _media(second), strict=True):
            given = _tensors(mapped, again)
            inputs.append(given)
            (rows,) = _run(tower, inputs[-1:])
            alone.append(rows)
            demand(
                tuple(rows.shape) == (len(mapped.ids), decoder.row_width),
                f"{len(mapped.ids)} ids of width {decoder.row_width}, but the tower gives {tuple(rows.shape)}.",
            )
            demand(all(0 <= i < decoder.vocab for i in mapped.ids), "Ids must be within the vocabulary.")
            _check_positions(mapped, decoder.position_axes)
    for rows, among in zip(alone, _run(tower, inputs), strict=True):
        demand(
            rows.shape == among.shape and torch.allclose(rows, among, rtol=1e-4, atol=1e-4 * float(rows.abs().max())),
            "The tower gives other rows for an item when others are beside it.",
        )


def _media(part: Mapped | Worded) -> Sequence[Mapped]:
    """Those of an item."""
    if not isinstance(part, Worded):
        return [part]
    demand(part.text.count(part.mark) == len(part.media) > 0, f"{part.mark!r} must stand in the text for each medium.")
    return part.media


def _tensors(mapped: Mapped, again: Mapped) -> dict[str, Tensor]:
    """The tensors of a medium, which was mapped twice."""
    demand(list(mapped.ids) == list(again.ids), "The same item gives other ids the second time.")
    tensors = {name: torch.as_tensor(value) for name, value in mapped.tensors.items()}
    for name, tensor in tensors.items():
        same = torch.equal(tensor, torch.as_tensor(again.tensors[name]))
        demand(same, f"The same item gives another {name} the second time.")
    return tensors


def _check_positions(mapped: Mapped, axes: int) -> None:
    if mapped.positions is not None:
        shape, wanted = np.shape(mapped.positions), (axes, len(mapped.ids))
        demand(shape == wanted, f"{len(mapped.ids)} ids of a model with {axes} axes, but positions of shape {shape}.")


def _run(tower: torch.nn.Module, inputs: Items) -> list[Tensor]:
    """Rows of each, from one call."""
    with torch.no_grad():
        rows = tower(inputs, TowerCall("cpu"))
    demand(len(rows) == len(inputs), f"The tower was given {len(inputs)} media, and gave rows of {len(rows)}.")
    return list(rows)
