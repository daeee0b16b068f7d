"""The rows of pictures, by the method of the model that computes them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from quire.errors import PluginError

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.towers.tower import Items, TowerCall
    from quire_plugins.transformers_fallback.model import TransformersModel


@dataclass(frozen=True)
class PictureTower:
    """The part of a model that turns pictures into rows; its matrices are those of the model's body."""

    def build(self, width: int, builder: ModuleBuilder) -> PictureRows:
        """A module without parameters."""
        return PictureRows()


class PictureRows(nn.Module):
    """The tower of a model of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self._of: tuple[TransformersModel, ...] = ()  # a tuple, so that the model is no submodule of its tower

    def use_model(self, model: TransformersModel) -> None:
        """Compute rows with this model."""
        self._of = (model,)

    def forward(self, items: Items, call: TowerCall) -> list[Tensor]:
        """Rows of each item, [length_i, width]; every item by itself."""
        (model,) = self._of
        found = []
        for number, item in enumerate(items):
            with model.step.encode(partial(_bound, call, number, len(items))):
                found.append(picture_rows(model.body, item))
        return found


def picture_rows(body: Any, tensors: Any) -> Tensor:
    """The rows of one picture, [rows, width]. Raises PluginError if the model computes more than rows."""
    takes = signature(body.get_image_features).parameters
    with torch.inference_mode():
        made = body.get_image_features(**{name: value for name, value in tensors.items() if name in takes})
    if getattr(made, "deepstack_features", None) is not None:
        raise PluginError("The model adds features of pictures to several of its layers, which cannot be computed.")
    rows = getattr(made, "pooler_output", made)
    rows = torch.cat([each.flatten(0, -2) for each in rows]) if isinstance(rows, list | tuple) else rows
    return rows.flatten(0, -2)


def _bound(call: TowerCall, number: int, items: int, rows: int) -> Any:
    """Adapters for a layer that gets this many rows of one item."""
    return call.context([rows if i == number else 0 for i in range(items)]).adapters
