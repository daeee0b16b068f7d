"""Parts of decoders with cross-attention to an encoder input, such as Whisper's: frozen descriptions without torch.

    tower ─▶ rows of the encoder input ─▶ keys and values of every block, stored once ─▶ cross-attention of text tokens

The encoder input takes the first positions of a seq, and the pages of these positions hold the keys and values that
cross-attention reads, as the pages of text hold those of self-attention. So prefix caching, copying and swapping of
pages also apply to encoder inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire_models.parts.decoder import AttentionPart, KvShape, Part

if TYPE_CHECKING:
    from quire_models.modules.attention.cross_attention import CrossAttentionBlockModule, CrossAttentionModule
    from quire_models.modules.builder import ModuleBuilder

PADDING_MULTIPLE = 64
"""Text begins at a multiple of this many positions: with all usual page sizes, on a page of its own."""


@dataclass(frozen=True)
class EncoderInput:
    """What every seq begins with: an image or audio, or the text of the prompt itself if `is_text` (T5, BART).

    length: number of its rows, the same for all seqs; of a text the largest number.
    """

    length: int
    is_text: bool = False

    @property
    def padded_length(self) -> int:
        """The most positions before the text of the decoder. Those without a row are never written or read."""
        return padded(self.length)


def padded(length: int) -> int:
    """Positions that an encoder input of this many rows takes."""
    return -(-length // PADDING_MULTIPLE) * PADDING_MULTIPLE


@dataclass(frozen=True)
class CrossAttention:
    """Grouped-query attention of each token to its seq's encoder input.

    heads, kv_heads, head_dim: as in `Attention`. scale: factor of the scores, head_dim ** -0.5 by default.
    """

    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = True
    out_bias: bool = True
    scale: float | None = None

    @property
    def kv_shape(self) -> KvShape:
        """What is stored for each row of the encoder input."""
        return KvShape(self.kv_heads, self.head_dim)

    def build(self, width: int, builder: ModuleBuilder) -> CrossAttentionModule:
        """A module (x, forward) -> [tokens, width], with `store` for the rows of encoder inputs."""
        from quire_models.modules.attention.cross_attention import CrossAttentionModule

        return CrossAttentionModule(width, self, builder)


@dataclass(frozen=True)
class CrossAttentionBlock:
    """x += attention, x += cross-attention, x += mlp, with a norm before each.

    norm_after: the norms are after each sum instead (BART).
    Raises ValueError if the two attentions have different `kv_shape`s: they share the block's pages.
    """

    attn: AttentionPart
    cross: CrossAttention
    mlp: Part
    norm: Part
    norm_after: bool = False

    def __post_init__(self) -> None:
        own, read = self.attn.kv_shape, self.cross.kv_shape
        if own != read:
            raise ValueError(f"attention stores {own} per token and cross-attention {read}; they must be equal")

    def build(self, width: int, builder: ModuleBuilder) -> CrossAttentionBlockModule:
        """A module (x, forward) -> [tokens, width], with `store` for the rows of encoder inputs."""
        from quire_models.modules.attention.cross_attention import CrossAttentionBlockModule

        return CrossAttentionBlockModule(width, self, builder)
