"""Towers that join the hidden states of neighbouring patches (pixel shuffle). This module is not a plugin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.errors import CheckpointError
from quire.plugin import Part, VisionEncoder

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder


@dataclass(frozen=True, kw_only=True)
class ShuffledTower:
    """Tiles through an encoder; then the hidden states of each square of merge × merge patches become one embedding.

    norm: of the joined hidden states, if any. projector: to the decoder's width; None = one matrix, with a bias if
    `bias`. most_tiles: of an image, for measuring memory. An item has `pixels`, floats [tiles, channels, tile, tile].
    """

    vision: VisionEncoder
    merge: int
    norm: Part | None = None
    projector: Part | None = None
    bias: bool = False
    most_tiles: int = 1

    @property
    def tokens(self) -> int:
        """Embeddings of a tile."""
        return (self.vision.patches.side // self.merge) ** 2

    @property
    def features(self) -> int:
        """Size of the joined hidden states."""
        return self.vision.features * self.merge**2

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """The tower; its rows have this width."""
        from quire_plugins.vision.shuffled.shuffle_tower import ShuffledVisionModule

        return ShuffledVisionModule(width, self, builder)


def check_squares(vision: VisionEncoder, merge: int, field: str) -> None:
    """Raises CheckpointError unless the patches of a tile are whole squares. field: of config.json."""
    side = vision.patches.side
    if merge < 1 or side % merge or vision.tokens != side**2:
        raise CheckpointError(
            f"config.json: `{field}` joins squares of {merge} × {merge} patches, but the image encoder has"
            f" {vision.tokens} tokens of {side} × {side} patches."
        )
