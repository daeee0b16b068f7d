"""Parts of encoders, in addition to those they share with decoders: frozen descriptions that import no torch.

An encoder's tokens also attend to later ones, so a prompt is computed in one step and nothing of it is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire_models.parts.attention.position_bias import PositionBias
from quire_models.parts.decoder import BlockPart, KvShape, Part, Positions
from quire_models.parts.rope_config import Rope
from quire_models.parts.state import StateShape

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder
    from quire_models.modules.encoder import EncoderModel


@dataclass(frozen=True)
class RowAttention:
    """Bidirectional attention of each token to all tokens of its prompt.

    heads, kv_heads, head_dim: as in `Attention`. rope: None for models with learned positions. window: a token
    attends to itself and the window - 1 tokens on each side. scale: factor of the scores, head_dim ** -0.5 by default.
    qk_norm: norm of all queries of a token at once, and of all its keys. position_bias: what is added to scores by
    distance.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope | None = None
    qkv_bias: bool = True
    out_bias: bool = True
    window: int | None = None
    scale: float | None = None
    qk_norm: Part | None = None
    position_bias: PositionBias | None = None

    @property
    def kv_shape(self) -> KvShape:
        """Zero: nothing is stored."""
        return KvShape(0, 0)

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_models.modules.encoder import WholeRowAttention

        return WholeRowAttention(width, self, builder)


@dataclass(frozen=True)
class Encoder:
    """A model that returns hidden states of whole prompts and generates no text.

    vocab, width: vocab_size, hidden_size. norm: the final norm, if any. embed_norm: norm of the sum of a token's
    embeddings (token, position, type). token_types: rows in the table of types (type_vocab_size), 0 for none. It has
    the interface of `quire_models.Decoder`, so the engine treats both alike.
    """

    vocab: int
    width: int
    blocks: tuple[BlockPart, ...]
    norm: Part | None = None
    embed_norm: Part | None = None
    positions: Positions | None = None
    token_types: int = 0

    @property
    def tied(self) -> bool:
        """Always false: there is no LM head."""
        return False

    @property
    def has_lm_head(self) -> bool:
        return False

    @property
    def non_causal(self) -> bool:
        """Whether a prompt must be computed in one step: always."""
        return True

    @property
    def bidirectional_media(self) -> bool:
        """Always false: the whole prompt is computed in one step anyway."""
        return False

    @property
    def encoder_input(self) -> None:
        """Always None: there is no cross-attention."""
        return None

    @property
    def has_token_types(self) -> bool:
        """Whether it distinguishes the texts of a pair by `ForwardBatch.token_types`."""
        return self.token_types > 1

    @property
    def row_width(self) -> int:
        """Width of an embedding, and of the rows that a tower returns."""
        return self.width

    @property
    def position_axes(self) -> int:
        """Number of position axes of the rotary embeddings."""
        return 1

    @property
    def kv_shapes(self) -> tuple[KvShape, ...]:
        """Empty: no block uses the KV cache."""
        return ()

    @property
    def state_shapes(self) -> tuple[StateShape | None, ...]:
        """Empty: no block keeps state."""
        return ()

    @property
    def has_kv_cache_variants(self) -> bool:
        return False

    def kv_cache_variant(self, prompt_len: int) -> int:
        """Always 0: nothing is cached."""
        return 0

    def build(self, builder: ModuleBuilder) -> EncoderModel:
        """The model, with uninitialized weights."""
        from quire_models.modules.encoder import EncoderModel

        return EncoderModel(self, builder)


@dataclass(frozen=True, kw_only=True)
class TextEncoderTower:
    """Blocks over the embeddings of a text, whose tokens attend to each other in both directions.

    length: most tokens of a text. embed_scale: factor of embeddings. positions: learned position embeddings.
    embed_norm: norm of the first block's input. norm: after the last block. An item has `ids`, int64 [tokens].
    """

    length: int
    blocks: tuple[BlockPart, ...]
    norm: Part | None = None
    embed_norm: Part | None = None
    embed_scale: float = 1.0
    positions: Positions | None = None

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A tower whose module needs the embedding table of the decoder (`UsesEmbeddings`)."""
        from quire_models.towers.text import TextEncoderModule

        return TextEncoderModule(width, self, builder)
