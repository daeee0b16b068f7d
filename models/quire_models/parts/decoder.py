"""Parts of decoders: frozen descriptions that are built into modules.

A part is any frozen object with `build(width, builder)` that returns an `nn.Module`; a plugin adds parts by
defining such classes. Parts import torch only when they are built, so that listing plugins stays fast.

    a block is called with (x [tokens, width], forward) and returns x [tokens, width];
    attention and MLP likewise; a norm is called with x [..., width].

Names beside those of Hugging Face configs: width = hidden_size, vocab = vocab_size, heads = num_attention_heads,
kv_heads = num_key_value_heads, tied = tie_word_embeddings, act = hidden_act, eps = rms_norm_eps or layer_norm_eps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from quire_models.parts.attention import has_kv_cache_variants, kv_cache_variant, position_axes
from quire_models.parts.attention.self_attention import Attention
from quire_models.parts.state import KvShape, StateShape, kv_shape, parts_of, state_shape

__all__ = ["Attention", "KvShape"]

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.blocks import DecoderModel
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.cross_attention import EncoderInput


class Part(Protocol):
    """A description that can be built into a module."""

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """Build the module for inputs of `width`; it must create all its matrices through `builder`."""
        ...


class AttentionPart(Part, Protocol):
    """An attention part, which stores keys and values in the KV cache. Options: `quire_models.parts.attention`."""

    @property
    def kv_shape(self) -> KvShape:
        """What it stores per token."""
        ...


class BlockPart(Part, Protocol):
    """A decoder layer. `quire_models.parts.state` says how it states what it keeps for each seq."""


@dataclass(frozen=True)
class GatedMlp:
    """Gated MLP: down(act(gate(x)) * up(x)).

    intermediate_size: outputs of gate and of up, as in Hugging Face configs. act: a name in `quire_kernels.ops.ACTS`
    (hidden_act, mapped by `configs.act`), or a part built for width `intermediate_size`: a module x -> the same shape,
    whose attribute `elementwise`, if true, lets ranks divide its columns.
    bias: whether the matrices have biases. gate_scale, down_scale: factors of the outputs of gate and of down
    (mlp_multipliers of Falcon-H1).
    """

    intermediate_size: int
    act: str | Part = "silu"
    bias: bool = False
    gate_scale: float = 1.0
    down_scale: float = 1.0

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_models.modules.mlp import GatedFeedForward

        return GatedFeedForward(width, self, builder)


@dataclass(frozen=True)
class Mlp:
    """MLP: down(act(up(x))), with biases unless `bias` is off.

    intermediate_size: outputs of up (GPT-2: n_inner, OPT: ffn_dim). act: as in `GatedMlp`.
    """

    intermediate_size: int
    act: str | Part = "gelu_tanh"
    bias: bool = True

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_models.modules.mlp import FeedForward

        return FeedForward(width, self, builder)


@dataclass(frozen=True)
class Block:
    """x += scale * attention, x += scale * mlp, with norms before (norm_in) and after (norm_out) each branch.

    Llama has norm_in, OLMo 2 norm_out, Gemma 2 both.
    """

    attn: Part
    mlp: Part
    norm: Part
    norm_in: bool = True
    norm_out: bool = False
    residual_scale: float = 1.0

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_models.modules.blocks import ResidualBlock

        return ResidualBlock(width, self, builder)


@dataclass(frozen=True)
class ParallelBlock:
    """x + attention(norm(x)) + mlp(norm(x)): both branches read the block's input (GPT-NeoX, Falcon, Cohere, Phi).

    norms: 1 if both branches share the norm `attn_in`; 2 if the MLP has a norm of its own, `mlp_in`.
    """

    attn: Part
    mlp: Part
    norm: Part
    norms: int = 1

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_models.modules.blocks import ParallelResidualBlock

        return ParallelResidualBlock(width, self, builder)


@dataclass(frozen=True)
class PostNormBlock:
    """x = norm(x + attention(x)), x = norm(x + mlp(x)): the norms apply to the residual stream (BERT).

    The norms are named `attn_in` and `mlp_in`, because some checkpoints use one set of names for both kinds of block.
    """

    attn: Part
    mlp: Part
    norm: Part

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_models.modules.blocks import PostNormResidualBlock

        return PostNormResidualBlock(width, self, builder)


@dataclass(frozen=True)
class Positions:
    """Learned embeddings of positions 0 … count - 1 (max_position_embeddings); the table has `offset` unused rows
    before them.
    """

    count: int
    offset: int = 0


@dataclass(frozen=True)
class Decoder:
    """A complete language model.

    vocab, width: vocab_size, hidden_size. norm: the final norm, if any. embed_norm: norm of the first block's input
    (BLOOM, BART). tied: the LM head is the embedding table
    (tie_word_embeddings). embed_scale: factor of embeddings; also of the rows that an adapter puts in their place, if
    scales_rows. logit_scale, then logit_softcap: applied to logits.
    head_bias: the LM head has a bias. positions: learned position embeddings. embed_width: width of the embedding
    table where it differs from `width` (OPT: word_embed_proj_dim); then there are projections in and out.
    has_lm_head: without one, the model is for pooling only. bidirectional_media: tokens of an image attend to all of
    it, also to later tokens, so the image must be computed in one step. deepstack: number of first blocks after each of
    which the rows of media add further features; a row holds these after its embedding (Qwen3-VL). encoder_input: what
    the blocks read by cross-attention, if anything. table_rows: rows of the embedding table and of the head that this
    rank has, None = all (`quire_models.sharding`).
    """

    vocab: int
    width: int
    blocks: tuple[BlockPart, ...]
    norm: Part | None
    tied: bool = False
    embed_scale: float = 1.0
    scales_rows: bool = False
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    head_bias: bool = False
    positions: Positions | None = None
    embed_width: int | None = None
    embed_norm: Part | None = None
    has_lm_head: bool = True
    bidirectional_media: bool = False
    deepstack: int = 0
    encoder_input: EncoderInput | None = None
    table_rows: int | None = None

    @property
    def non_causal(self) -> bool:
        """Whether a prompt must be computed in one step. Never: its tokens attend only to earlier ones."""
        return False

    @property
    def has_token_types(self) -> bool:
        """Whether it distinguishes the texts of a pair by `ForwardBatch.token_types`."""
        return False

    @property
    def row_width(self) -> int:
        """Width of the rows that a tower returns: that of an embedding, and of the features for `deepstack`."""
        return (self.embed_width or self.width) * (1 + self.deepstack)

    @property
    def position_axes(self) -> int:
        return position_axes(self._parts)

    @property
    def kv_shapes(self) -> tuple[KvShape, ...]:
        """What each block stores per token."""
        return tuple(map(kv_shape, self.blocks))

    @property
    def state_shapes(self) -> tuple[StateShape | None, ...]:
        """The state that each block keeps for each seq."""
        return tuple(map(state_shape, self.blocks))

    @cached_property
    def _parts(self) -> list[Any]:
        return [part for block in self.blocks for part in parts_of(block)]

    @property
    def has_kv_cache_variants(self) -> bool:
        return has_kv_cache_variants(self._parts)

    def kv_cache_variant(self, prompt_len: int) -> int:
        """Part of the page hash: prompts share cached pages only if this is equal for their lengths."""
        return kv_cache_variant(self._parts, prompt_len)

    def build(self, builder: ModuleBuilder) -> DecoderModel:
        """The model, with uninitialized weights."""
        from quire_models.modules.blocks import DecoderModel

        return DecoderModel(self, builder)
