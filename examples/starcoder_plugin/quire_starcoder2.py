"""StarCoder2: grouped attention in a window, biases everywhere, layer norms and a plain MLP."""

from quire.plugin import (
    Architecture,
    Attention,
    Block,
    Decoder,
    LayerNorm,
    Mlp,
    Rope,
    WeightsMapper,
    config_fields,
    hookimpl,
    weight_names,
)

NAMES = weight_names.LLAMA | WeightsMapper((("mlp.c_fc", "mlp.up"), ("mlp.c_proj", "mlp.down")))


def decoder(c):
    norm, head_dim = LayerNorm(c.norm_epsilon), config_fields.head_dim(c)
    attention = Attention(
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        head_dim=head_dim,
        rope=Rope.from_config(c, head_dim),
        qkv_bias=c.use_bias,
        out_bias=c.use_bias,
        window=c.sliding_window,
    )
    block = Block(attention, Mlp(c.intermediate_size, config_fields.act(c.hidden_act), bias=c.use_bias), norm)
    return Decoder(c.vocab_size, c.hidden_size, (block,) * c.num_hidden_layers, norm, tied=c.tie_word_embeddings)


@hookimpl
def quire_architectures():
    yield Architecture(name="Starcoder2ForCausalLM", decoder=decoder, names=NAMES, replaces="starcoder")
