"""A new modality: point clouds for a Llama, with one token per point.

config.json has `architectures: ["PointsLlamaForCausalLM"]`, `point_size` (numbers per point) and `point_token_id`
(the placeholder of a point in the token ids). The checkpoint has `point_embed.up` and `point_embed.down` in addition to
the tensors of a Llama.

    LLM(folder, plugins="llama,points").generate({"prompt": "<points> is a", "multi_modal_data": {"points": cloud}})

Over HTTP a cloud is a content part of a chat message: `{"type": "points", "points": [[0.1, 0.2, 0.3], …]}`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.plugin import (
    Architecture,
    BadRequest,
    Context,
    InputMapper,
    MappedMedia,
    Option,
    WeightsMapper,
    hookimpl,
    weight_names,
)
from quire_plugins.architectures.llama import decoder

if TYPE_CHECKING:
    from torch import nn

    from quire.plugin import ModuleBuilder

ARCHITECTURE = "PointsLlamaForCausalLM"
NAMES = weight_names.LLAMA | WeightsMapper((("point_embed", "tower"),))


@dataclass(frozen=True)
class PointTower:
    """Two matrices with an activation between them, from `size` numbers to an embedding row."""

    size: int

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """The module of the tower; it maps each point of an item to one row."""
        from quire_tour.points_tower import PointEmbedding

        return PointEmbedding(self.size, width, builder)


class PointProcessor:
    """Accepts anything that torch can convert to a matrix [points, size]; centers it and scales it to radius 1."""

    def __init__(self, context: Context) -> None:
        self._size: int = context.config["point_size"]
        self._token_id: int = context.config["point_token_id"]
        self._max_points: int = context.options["most"]

    def map(self, item: Any) -> MappedMedia:
        """One placeholder id per point."""
        import torch

        try:
            points = torch.as_tensor(item, dtype=torch.float32)
        except (TypeError, ValueError) as error:  # the JSON of a client may be anything
            raise BadRequest(f"Points must be a matrix of numbers: {error}") from error
        if points.ndim != 2 or points.shape[1] != self._size or not 0 < len(points) <= self._max_points:
            raise BadRequest(
                f"Points must be a matrix of 1 to {self._max_points} rows of {self._size}; got {list(points.shape)}."
            )
        points = points - points.mean(0)
        reach = points.norm(dim=1).max().clamp(min=1e-6)
        return MappedMedia(ids=[self._token_id] * len(points), tensors={"points": points / reach})


@hookimpl
def quire_options() -> Iterable[Option]:
    """The limit of the number of points."""
    yield Option("most", int, 4096, "maximum points of one cloud")


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """A Llama with a tower for points."""
    yield Architecture(ARCHITECTURE, decoder, NAMES, tower=lambda c: PointTower(c.point_size))


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """The modality `points`, with the default marker `<points>`."""
    yield InputMapper("points", ARCHITECTURE, "points", PointProcessor)
