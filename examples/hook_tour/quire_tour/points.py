"""A modality of one's own: point clouds, each point read as one token by a model that is a Llama otherwise.

config.json has `architectures: ["PointsLlamaForCausalLM"]`, `point_size` (numbers per point) and `point_token_id`
(what stands for a point among token ids); the checkpoint has `point_embed.up` and `point_embed.down` beside a
Llama's tensors.

    LLM(folder, plugins="llama,points").generate({"prompt": "<points> is a", "multi_modal_data": {"points": cloud}})

Over HTTP a cloud is a part of a chat's message: `{"type": "points", "points": [[0.1, 0.2, 0.3], …]}`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire import Architecture, InputMapper, Option, hookimpl
from quire.errors import BadRequest
from quire.records import Context, Mapped
from quire_models import names
from quire_plugins.llama import decoder

if TYPE_CHECKING:
    from torch import nn

    from quire_models import Make

ARCHITECTURE = "PointsLlamaForCausalLM"
NAMES = names.LLAMA | names.Names((("point_embed", "tower"),))


@dataclass(frozen=True)
class PointTower:
    """Two matrices with an activation between, from `size` numbers to a row of the model's width."""

    size: int

    def build(self, width: int, make: Make) -> nn.Module:
        """A tower whose media have points [points, size], each a row of its own."""
        from quire_tour.points_tower import PointEmbedding

        return PointEmbedding(self.size, width, make)


class MapsPoints:
    """Anything that torch takes for a matrix [points, size]: moved to its centre and scaled to reach 1."""

    def __init__(self, context: Context) -> None:
        self._size: int = context.config["point_size"]
        self._token_id: int = context.config["point_token_id"]
        self._most: int = context.options["most"]

    def map(self, item: Any) -> Mapped:
        """As many ids as points."""
        import torch

        try:
            points = torch.as_tensor(item, dtype=torch.float32)
        except (TypeError, ValueError) as error:  # a client's JSON may be anything
            raise BadRequest(f"Points must be a matrix of numbers: {error}") from error
        if points.ndim != 2 or points.shape[1] != self._size or not 0 < len(points) <= self._most:
            raise BadRequest(
                f"Points must be a matrix of 1 to {self._most} rows of {self._size}; got {list(points.shape)}."
            )
        points = points - points.mean(0)
        reach = points.norm(dim=1).max().clamp(min=1e-6)
        return Mapped(ids=[self._token_id] * len(points), tensors={"points": points / reach})


@hookimpl
def quire_options() -> Iterable[Option]:
    """A bound."""
    yield Option("most", int, 4096, "most points of one cloud")


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """A Llama with a tower."""
    yield Architecture(ARCHITECTURE, decoder, NAMES, tower=lambda c: PointTower(c.point_size))


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Its only modality; `<points>` marks the places."""
    yield InputMapper("points", ARCHITECTURE, "points", MapsPoints)
