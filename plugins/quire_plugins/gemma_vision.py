"""How Gemma 3 sees: a picture goes through SigLIP, and squares of its patches become one row of embeddings each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError
from quire_models import Norm, names
from quire_models.vision import VisionEncoder
from quire_plugins import clip

if TYPE_CHECKING:
    from torch import nn

    from quire_models.make import Make

_SEEING = clip.names("vision_tower", "tower.vision", normed=True) | names.Names(
    (
        ("multi_modal_projector.mm_input_projection_weight", "tower.project.weight"),
        ("multi_modal_projector.mm_soft_emb_norm", "tower.norm"),
    ),
    transforms=(("tower.project.weight", names.transpose),),
)

NAMES = (names.LLAMA | names.SANDWICH).under("language_model") | names.LANGUAGE_MODEL | _SEEING.and_under("model")


@dataclass(frozen=True)
class PooledTower:
    """Pictures through an encoder, the mean of each square of `square` patches a side, a norm and a matrix."""

    vision: VisionEncoder
    square: int
    norm: Norm

    @property
    def tokens(self) -> int:
        """Rows of a picture."""
        return (self.vision.patches.side // self.square) ** 2

    def build(self, width: int, make: Make) -> nn.Module:
        """A tower; see `gemma_vision_tower.PicturesToRows` for the tensors of a medium."""
        from quire_plugins.gemma_vision_tower import PicturesToRows

        return PicturesToRows(width, self, make)


def tower(c: Any) -> PooledTower:
    """Encoder and projector of `Gemma3Config`. Raises CheckpointError where they do not fit together."""
    vision = clip.encoder(c.vision_config, normed=True)
    side, wanted = vision.patches.side, int(c.mm_tokens_per_image**0.5)
    found = PooledTower(vision, max(1, side // max(1, wanted)), Norm(c.vision_config.layer_norm_eps, offset=1.0))
    if vision.patches.class_token or found.tokens != c.mm_tokens_per_image:
        raise CheckpointError(
            f"config.json: `mm_tokens_per_image` is {c.mm_tokens_per_image}, but the model sees {side} × {side} patches"
            f" of a picture, which become {found.tokens} tokens."
        )
    return found
