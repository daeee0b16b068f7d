"""What architectures are made of: frozen descriptions, and nothing that runs.

A part is any frozen object with `build(width, make)` that gives an `nn.Module`; a plugin brings its own by
defining one. Parts import torch only when they are built, so that listing plugins stays quick.

    a block is called with (x [tokens, width], forward) and returns x [tokens, width];
    attention and MLP likewise; a norm is called with x [..., width].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from quire_models.attention_parts import kv_variant, position_axes
from quire_models.scalings import Rope

if TYPE_CHECKING:
    from torch import nn

    from quire_models.blocks import DecoderModel
    from quire_models.make import Make
    from quire_models.sources import Source


class KvShape(NamedTuple):
    """What one block keeps of one token: keys and values of [kv_heads, head_dim] each."""

    kv_heads: int
    head_dim: int


class Part(Protocol):
    """Anything that can be built."""

    def build(self, width: int, make: Make) -> nn.Module:
        """The module, for inputs of `width`; all matrices through `make`."""
        ...


class AttentionPart(Part, Protocol):
    """A part that keeps keys and values in the page pool. It says how it turns keys: see `attention_parts`."""

    @property
    def kv_shape(self) -> KvShape:
        """What it keeps of one token."""
        ...


class BlockPart(Part, Protocol):
    """A decoder layer, built of an attention part and whatever else."""

    @property
    def attn(self) -> AttentionPart:
        """Its attention."""
        ...


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention over the seq's pages.

    rope: None for models with learned positions. qk_norm: a norm of queries and keys, with the same weight for each
    head, or of all heads at once if qk_norm_wide (OLMo 2); `PerHead` is one with a weight for each head. window: a
    token sees itself and the window - 1 before it. softcap: scores are squashed to ± softcap. scale: of the scores,
    head_dim ** -0.5 unless given. A part of a plugin's own may have `needs_ops`, as `Architecture` has.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Part | None = None
    qk_norm_wide: bool = False
    window: int | None = None
    softcap: float | None = None
    scale: float | None = None

    @property
    def kv_shape(self) -> KvShape:
        """What it keeps of one token."""
        return KvShape(self.kv_heads, self.head_dim)

    def build(self, width: int, make: Make) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_models.attention import SelfAttention

        return SelfAttention(width, self, make)


@dataclass(frozen=True)
class GatedMlp:
    """down(act(gate(x)) * up(x)); `hidden` is the size between.

    act: a name in quire_kernels.ops.ACTS, or a part of its own, built for `hidden`: a module x -> the same shape.
    """

    hidden: int
    act: str | Part = "silu"
    bias: bool = False

    def build(self, width: int, make: Make) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_models.mlp import GatedFeedForward

        return GatedFeedForward(width, self, make)


@dataclass(frozen=True)
class Mlp:
    """down(act(up(x))), with biases unless `bias` is off; `act` as of `GatedMlp`."""

    hidden: int
    act: str | Part = "gelu_tanh"
    bias: bool = True

    def build(self, width: int, make: Make) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_models.mlp import FeedForward

        return FeedForward(width, self, make)


@dataclass(frozen=True)
class Moe:
    """Mixture of `experts` gated MLPs, `top_k` of them for each token.

    The softmax over all experts weighs the chosen ones; `renormalise` makes their weights sum to 1.
    """

    hidden: int
    experts: int
    top_k: int
    renormalise: bool = True
    act: str = "silu"

    def build(self, width: int, make: Make) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_models.mlp import Mixture

        return Mixture(width, self, make)


@dataclass(frozen=True)
class Block:
    """x += scale * attention, x += scale * mlp, with norms before (norm_in) and after (norm_out) each branch.

    Llama: before. OLMo 2: after. Gemma 2: both.
    """

    attn: AttentionPart
    mlp: Part
    norm: Part
    norm_in: bool = True
    norm_out: bool = False
    residual_scale: float = 1.0

    def build(self, width: int, make: Make) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_models.blocks import ResidualBlock

        return ResidualBlock(width, self, make)


@dataclass(frozen=True)
class ParallelBlock:
    """x + attention(norm(x)) + mlp(norm(x)): both read what came in (GPT-NeoX, Falcon, Cohere, Phi).

    norms: 1 if they read it through the same norm, `attn_in`; 2 if the MLP has one of its own, `mlp_in`.
    """

    attn: AttentionPart
    mlp: Part
    norm: Part
    norms: int = 1

    def build(self, width: int, make: Make) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_models.blocks import ParallelResidualBlock

        return ParallelResidualBlock(width, self, make)


@dataclass(frozen=True)
class PostNormBlock:
    """x = norm(x + attention(x)), x = norm(x + mlp(x)): the norm stands on the stream itself.

    Its norms are named `attn_in` and `mlp_in`, as in checkpoints that use one set of names for both kinds.
    """

    attn: AttentionPart
    mlp: Part
    norm: Part

    def build(self, width: int, make: Make) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_models.blocks import PostNormResidualBlock

        return PostNormResidualBlock(width, self, make)


@dataclass(frozen=True)
class Positions:
    """Learned embeddings of positions 0 … count - 1; the table has `offset` unused rows before them."""

    count: int
    offset: int = 0


@dataclass(frozen=True)
class Decoder:
    """A whole language model.

    tied: the head is the embedding table. norm: the final norm, if any. embed_scale multiplies
    embeddings; logit_scale multiplies logits, then logit_softcap squashes them. embed_width: width of the
    table where it differs from the model's (then there are projections in and out). generates: whether it has a head
    that gives logits; without one, it is for pooling only. whole_media: tokens of a medium see all of it, also what
    stands behind them, so that it must be computed in one step. source: what its blocks read beside the text, if
    anything.
    """

    vocab: int
    width: int
    blocks: tuple[BlockPart, ...]
    norm: Part | None
    tied: bool = False
    embed_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    head_bias: bool = False
    positions: Positions | None = None
    embed_width: int | None = None
    generates: bool = True
    whole_media: bool = False
    source: Source | None = None

    @property
    def whole_prompts(self) -> bool:
        """Whether a prompt must be computed in one step: no, its tokens see only those before them."""
        return False

    @property
    def has_token_types(self) -> bool:
        """Whether it tells the texts of a pair apart by `Forward.token_types`."""
        return False

    @property
    def row_width(self) -> int:
        """Width of an embedding, and so of the rows that a tower makes."""
        return self.embed_width or self.width

    @property
    def position_axes(self) -> int:
        """How many axes the positions have that rotary embeddings turn by."""
        return position_axes([block.attn for block in self.blocks])

    @property
    def kv_shapes(self) -> tuple[KvShape, ...]:
        """What each block keeps of one token."""
        return tuple(block.attn.kv_shape for block in self.blocks)

    def kv_variant(self, prompt_len: int) -> int:
        """Part of the page key: prompts share cached pages only if this is equal for their lengths.

        0 for nearly all models; see `quire_models.scalings` for those that turn keys by length.
        """
        return kv_variant([block.attn for block in self.blocks], prompt_len)

    def build(self, make: Make) -> DecoderModel:
        """The model, with weights not yet loaded."""
        from quire_models.blocks import DecoderModel

        return DecoderModel(self, make)


def with_blocks(decoder: Decoder, change: Callable[[int, Any], BlockPart]) -> Decoder:
    """The same decoder with each block, given its index, put through `change`."""
    return replace(decoder, blocks=tuple(change(i, block) for i, block in enumerate(decoder.blocks)))


def with_attention(decoder: Decoder, **changes: Any) -> Decoder:
    """The same decoder with some fields of every attention changed."""
    return with_blocks(decoder, lambda _, block: replace(block, attn=replace(block.attn, **changes)))
