"""A model as the engine sees it before it is built."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quire_models.parts.decoder import KvShape
from quire_models.parts.rope_config import Rope
from quire_models.parts.state import StateShape
from quire_plugins.transformers_fallback.model_class import ModelClass
from quire_plugins.transformers_fallback.tracing import AttentionCall, TracedModel

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_plugins.transformers_fallback.model import TransformersModel
    from quire_plugins.transformers_fallback.pictures.processing import PictureProcessor


@dataclass(frozen=True, eq=False)
class TransformersPart:
    """A model of transformers, which has the interface of `quire_models.model_part.ModelPart`.

    found: its class and config. traced: what its layers ask for. has_token_types: its embeddings distinguish the texts
    of a pair. embed_width: width of its embedding table. position_offset: the number that it gives to the first
    position. rope: its rotary embedding, if that depends on the length of the text. pictures: transformers' processor,
    if it takes pictures. position_axes: of the rotary embeddings.
    """

    found: ModelClass
    traced: TracedModel = field(repr=False)
    vocab: int
    width: int
    embed_width: int
    tied: bool
    has_token_types: bool = False
    position_offset: int = 0
    rope: Rope | None = None
    pictures: PictureProcessor | None = field(default=None, repr=False)
    position_axes: int = 1

    @property
    def has_lm_head(self) -> bool:
        return self.traced.has_lm_head

    @property
    def row_width(self) -> int:
        """Width of an embedding."""
        return self.embed_width

    @property
    def blocks(self) -> tuple[AttentionCall, ...]:
        """The calls of attention, which state what they ask of operations; it is not made of parts."""
        return self._paged_calls

    @property
    def positions(self) -> None:
        """None: its own modules have tables of positions, if any."""
        return None

    @property
    def non_causal(self) -> bool:
        """Whether a prompt must be computed in one step: if tokens attend to later ones."""
        return not self.traced.causal

    @property
    def bidirectional_media(self) -> bool:
        """Always false: tokens of a picture attend as those of text do."""
        return False

    @property
    def encoder_input(self) -> None:
        """Always None: there is no cross-attention."""
        return None

    @property
    def kv_shapes(self) -> tuple[KvShape, ...]:
        """What each call of attention stores per token; a model without attention has one that stores nothing."""
        return tuple(call.kv_shape for call in self._paged_calls) or (KvShape(0, 0),)

    @property
    def _paged_calls(self) -> tuple[AttentionCall, ...]:
        return self.traced.calls if self.traced.causal else ()

    @property
    def state_shapes(self) -> tuple[StateShape | None, ...]:
        """What each module with state keeps; their numbers are not those of `kv_shapes`."""
        return tuple(use.shape for use in self.traced.states) or (None,)

    @property
    def has_kv_cache_variants(self) -> bool:
        return self.rope is not None and self.rope.has_variants

    def kv_cache_variant(self, prompt_len: int) -> int:
        """How the keys of a prompt of this length are rotated."""
        return 0 if self.rope is None else self.rope.variant(prompt_len)

    def build(self, builder: ModuleBuilder) -> TransformersModel:
        """The model, with uninitialized weights."""
        from quire_plugins.transformers_fallback.model import TransformersModel

        return TransformersModel(self, builder)
