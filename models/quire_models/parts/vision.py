"""Parts of vision towers for images of one size: frozen descriptions that import no torch.

    pixels ─▶ Patches ─▶ blocks ─▶ hidden states of some layers, concatenated ─▶ Projector ─▶ embedding rows

An image, or a tile of one, is square and of fixed size, and its patches attend only to each other. Towers concatenate
the tokens of all tiles; a context (`quire_models.towers.tower`) says where each tile begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire_models.parts.decoder import BlockPart, Part

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.towers.vision import FeatureProjector, PatchEmbedding, PatchEncoder


@dataclass(frozen=True)
class Patches:
    """Cuts tiles into patches of `patch` × `patch` pixels (patch_size), with learned positions.

    tile: pixels of a tile's side (image_size). Each patch is a token; pixels beyond the last whole patch at the right
    and bottom are ignored. channels: num_channels. class_token: a learned token comes first. bias: of the patch
    projection.
    """

    tile: int
    patch: int
    channels: int = 3
    class_token: bool = False
    bias: bool = False

    @property
    def side(self) -> int:
        """Patches of a row, and of a column."""
        return self.tile // self.patch

    @property
    def tokens(self) -> int:
        """Tokens of a tile, including the class token."""
        return self.side**2 + self.class_token

    def build(self, width: int, builder: ModuleBuilder) -> PatchEmbedding:
        """A module (pixels [tiles, channels, tile, tile], context) -> [tiles * tokens, width]."""
        from quire_models.towers.vision import PatchEmbedding

        return PatchEmbedding(width, self, builder)


@dataclass(frozen=True)
class VisionEncoder:
    """Blocks over patches, and a choice of their hidden states.

    width: hidden size. norm: before the first block, if any. norm_out: after the last block, if any. layers: hidden
    states to return, concatenated (vision_feature_layer): 0 is the input of the first block, i the output of block i
    (from 1), negative numbers count from the end. drop_first: leave out the class token. Blocks after the last of
    `layers` are not run.
    """

    width: int
    patches: Patches
    blocks: tuple[BlockPart, ...]
    norm: Part | None = None
    norm_out: Part | None = None
    layers: tuple[int, ...] = (-1,)
    drop_first: bool = False

    @property
    def tokens(self) -> int:
        """Hidden states returned for a tile."""
        return self.patches.tokens - self.drop_first

    @property
    def features(self) -> int:
        """Size of a hidden state, all `layers` concatenated."""
        return self.width * len(self.layers)

    @property
    def indices(self) -> tuple[int, ...]:
        """`layers` without negative numbers. Raises ValueError for one that is out of range."""
        count = len(self.blocks) + 1
        if not all(-count <= layer < count for layer in self.layers):
            raise ValueError(f"layers must be from {-count} to {count - 1}, got {list(self.layers)}")
        return tuple(layer % count for layer in self.layers)

    def build(self, builder: ModuleBuilder) -> PatchEncoder:
        """A module (pixels [tiles, channels, tile, tile], context) -> [tiles, tokens, features]."""
        from quire_models.towers.vision import PatchEncoder

        return PatchEncoder(self, builder)


@dataclass(frozen=True)
class Projector:
    """MLP to the decoder's width: down(act(up(x))), with biases unless `bias` is off. inputs: size of a hidden
    state. expansion: size between the matrices, in widths of the decoder.
    """

    inputs: int
    act: str = "gelu"
    bias: bool = True
    expansion: int = 1

    def build(self, width: int, builder: ModuleBuilder) -> FeatureProjector:
        """A module (x [tokens, inputs], context) -> [tokens, width]."""
        from quire_models.towers.vision import FeatureProjector

        return FeatureProjector(width, self, builder)
