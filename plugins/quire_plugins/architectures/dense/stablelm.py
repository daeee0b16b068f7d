"""StableLM: layer norms, a partly rotary embedding, and in some models parallel branches and a norm for each head."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.plugin import (
    Architecture,
    Attention,
    Block,
    Decoder,
    GatedMlp,
    LayerNorm,
    ParallelBlock,
    PerHead,
    Rope,
    WeightsMapper,
    config_fields as configs,
    headless,
    hookimpl,
    weight_names as names,
)

NAMES = names.LLAMA | WeightsMapper((("q_layernorm.norms", "q_norm"), ("k_layernorm.norms", "k_norm")))


def decoder(c: Any) -> Decoder:
    norm, head_dim = LayerNorm(c.layer_norm_eps), configs.head_dim(c)
    attention = Attention(
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        head_dim=head_dim,
        rope=Rope.from_config(c, head_dim),
        qkv_bias=c.use_qkv_bias,
        qk_norm=PerHead(LayerNorm(c.layer_norm_eps)) if c.qk_layernorm else None,
    )
    mlp = GatedMlp(c.intermediate_size, configs.act(c.hidden_act))
    block = (ParallelBlock if c.use_parallel_residual else Block)(attention, mlp, norm)
    return Decoder(c.vocab_size, c.hidden_size, (block,) * c.num_hidden_layers, norm, tied=c.tie_word_embeddings)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language model, and the classes without a language head."""
    yield Architecture("StableLmForCausalLM", decoder, NAMES)
    yield from headless("StableLm", decoder, NAMES)
