"""The vision tower of Gemma 3: SigLIP, then average pooling of squares of patches and a projection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError
from quire_models import RMSNorm
from quire_models.loading import weight_names as names
from quire_models.parts.vision import VisionEncoder
from quire_plugins.vision import clip

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder

_TOWER = clip.names("vision_tower", "tower.vision", normed=True) | names.WeightsMapper(
    (
        ("multi_modal_projector.mm_input_projection_weight", "tower.project.weight"),
        ("multi_modal_projector.mm_soft_emb_norm", "tower.norm"),
    ),
    transforms=(("tower.project.weight", names.transpose),),
)

NAMES = (
    (names.LLAMA | names.PRE_AND_POST_NORM).under("language_model") | names.LANGUAGE_MODEL | _TOWER.and_under("model")
)


@dataclass(frozen=True)
class PooledTower:
    """An encoder, then for each square of `square` × `square` patches the mean, a norm and a matrix."""

    vision: VisionEncoder
    square: int
    norm: RMSNorm

    @property
    def tokens(self) -> int:
        return (self.vision.patches.side // self.square) ** 2

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        from quire_plugins.vision.gemma_tower import PooledVisionModule

        return PooledVisionModule(width, self, builder)


def tower(c: Any) -> PooledTower:
    """Encoder and projector of `Gemma3Config`. Raises CheckpointError if they do not match."""
    vision = clip.encoder(c.vision_config, normed=True)
    side, wanted = vision.patches.side, int(c.mm_tokens_per_image**0.5)
    found = PooledTower(vision, max(1, side // max(1, wanted)), RMSNorm(c.vision_config.layer_norm_eps, offset=1.0))
    if vision.patches.class_token or found.tokens != c.mm_tokens_per_image:
        raise CheckpointError(
            f"config.json: `mm_tokens_per_image` is {c.mm_tokens_per_image}, but the image encoder has"
            f" {side} × {side} patches, which become {found.tokens} tokens."
        )
    return found
