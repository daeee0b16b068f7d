"""Compares a prompt with the rows of a picture in it with what the model makes of the picture itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from quire.errors import CheckpointError, QuireError
from quire_models.step.forward_batch import MediaRows
from quire_models.testing import ChunkSpec, ModelDriver
from quire_plugins.transformers_fallback.pictures.processing import PictureProcessor, sample
from quire_plugins.transformers_fallback.pictures.tower import picture_rows

if TYPE_CHECKING:
    from quire_models.step.forward_batch import ForwardBatch
    from quire_plugins.transformers_fallback.model import TransformersModel

BEFORE, AFTER = (3, 5), (7, 11)
"""Ids of text around the picture."""


def difference_with_picture(model: TransformersModel, processor: PictureProcessor) -> float:
    """The relative difference between both, over all hidden states. Raises CheckpointError."""
    mapped = processor.map(sample())
    ids, shift = [*BEFORE, *mapped.ids, *AFTER], len(BEFORE)
    tensors = {
        name: value.to(model.device, model.dtype if value.is_floating_point() else value.dtype)
        for name, value in mapped.tensors.items()
    }
    positions = _positions(mapped, len(ids))
    rows = picture_rows(model.body, tensors)
    index = torch.as_tensor(mapped.rows_at, device=model.device) + shift
    if len(rows) != len(index):
        raise CheckpointError(f"its method makes {len(rows)} rows of a picture of {len(index)} placeholders")
    forward = _forward(model, ids, positions)
    forward.media = MediaRows(index, rows)
    ours = model(forward).clone()
    theirs = _by_itself(model, _forward(model, ids, positions), tensors, index)
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm().clamp(min=1e-6))


def _positions(mapped: Any, count: int) -> Tensor | None:
    """int64 [axes, count], None if they are consecutive."""
    if mapped.positions is None:
        return None
    before, last = len(BEFORE), int(mapped.positions.max()) + 1
    text = np.arange(len(AFTER)) + before + last
    rows = [np.concatenate([np.arange(before), axis + before, text]) for axis in np.asarray(mapped.positions, np.int64)]
    found = torch.tensor(np.stack(rows))
    assert found.shape[1] == count, "positions are those of all ids"
    return found


def _forward(model: TransformersModel, ids: list[int], positions: Tensor | None) -> ForwardBatch:
    forward = ModelDriver(model, model.part, [ids]).forward([ChunkSpec(0, len(ids))])
    forward.rope_positions = None if positions is None else positions.to(model.device)
    return forward


def _by_itself(model: TransformersModel, forward: ForwardBatch, tensors: dict[str, Tensor], index: Tensor) -> Tensor:
    """Hidden states of the model with the picture's tensors as its input, with masks as they were traced."""
    kinds = torch.zeros_like(forward.tokens)
    kinds[index] = 1
    given = {**model.inputs(forward), **tensors, "token_type_ids": kinds[None], "mm_token_type_ids": kinds[None]}
    takes = model.part.traced.takes
    model.step.begin(forward)
    model.step.checks_masks = True
    try:
        hidden: Tensor = model.body(**{name: value for name, value in given.items() if _takes(name, takes)})[0][0]
    except QuireError:
        raise
    except Exception as error:  # of transformers
        raise CheckpointError(f"transformers cannot compute a picture: {' '.join(str(error).split())[:200]}") from error
    finally:
        model.step.checks_masks = False
    return hidden


def _takes(name: str, takes: frozenset[str]) -> bool:
    return name in takes or name == "use_cache" or not name.endswith("token_type_ids")
