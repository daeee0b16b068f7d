"""GPT-J and CodeGen: parallel branches behind one norm, the first dimensions of each head rotated interleaved."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from quire.plugin import (
    Architecture,
    Attention,
    Decoder,
    LayerNorm,
    Mlp,
    ParallelBlock,
    Rope,
    RowOrder,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
)

if TYPE_CHECKING:
    from torch import Tensor

GPTJ = WeightsMapper(
    (
        ("transformer.wte", "embed"),
        ("transformer.h", "blocks"),
        ("transformer.ln_f", "norm"),
        ("lm_head", "head"),
        ("ln_1", "attn_in"),
        ("q_proj", "q"),
        ("k_proj", "k"),
        ("v_proj", "v"),
        ("out_proj", "o"),
        ("fc_in", "up"),
        ("fc_out", "down"),
    ),
    ignored=("*.attn.bias", "*.attn.masked_bias", "*.attn.causal_mask", "*.attn.embed_positions"),
)

SHARDS = 4
"""CodeGen's fused matrix has queries, values and keys of each quarter of the heads, one quarter after another."""


def _by_shard(decoder: Any) -> Tensor:
    import torch

    attn = decoder.blocks[0].attn
    size = attn.heads * attn.head_dim
    queries, values, keys = torch.arange(3 * size).view(SHARDS, 3, size // SHARDS).unbind(1)
    return torch.cat([queries.flatten(), keys.flatten(), values.flatten()])


CODEGEN = GPTJ | WeightsMapper((("qkv_proj", "qkv"),), transforms=(("*.attn.qkv.weight", RowOrder(_by_shard)),))


def decoder(c: Any) -> Decoder:
    norm, head_dim = LayerNorm(c.layer_norm_epsilon), c.n_embd // c.n_head
    rope = Rope(c.rotary_dim or c.n_embd, interleaved=True)
    mlp = Mlp(c.n_inner or 4 * c.n_embd, configs.act(c.activation_function))
    block = ParallelBlock(Attention(c.n_head, c.n_head, head_dim, rope), mlp, norm)
    blocks = (block,) * c.n_layer
    return Decoder(c.vocab_size, c.n_embd, blocks, norm, tied=c.tie_word_embeddings, head_bias=True)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language models `GPTJForCausalLM` and `CodeGenForCausalLM`."""
    yield Architecture("GPTJForCausalLM", decoder, GPTJ)
    yield Architecture("CodeGenForCausalLM", decoder, CODEGEN)
