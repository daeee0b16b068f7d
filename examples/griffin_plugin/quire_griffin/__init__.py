"""RecurrentGemma (Griffin, arXiv 2402.19427): a gated linear recurrence of our own in two of three blocks."""

from dataclasses import dataclass

from quire import plugin as q


@dataclass(frozen=True)
class GatedRecurrence:
    """out(act(y) * s): s_t = a_t s_{t-1} + sqrt(1 - a_t²) u_t, where u_t is the gated output of a convolution."""

    width: int
    heads: int
    kernel: int

    @property
    def state_shape(self):
        return q.StateShape((q.StateTensor((self.kernel - 1, self.width)), q.StateTensor((self.width,), float32=True)))

    def build(self, width, builder):
        from quire_griffin.recurrence import GatedRecurrenceModule

        return GatedRecurrenceModule(width, self, builder)


BLOCK = {"temporal_block": "attn", "temporal_pre_norm": "attn_in", "channel_pre_norm": "mlp_in", "mlp_block": "mlp"}
NAMES = {**BLOCK, "temporal_block.rg_lru": "attn", "model.final_norm": "norm"}


def decoder(c):
    dim, window = c.hidden_size // c.num_attention_heads, c.attention_window_size
    rope, bias = q.Rope.from_config(c, dim), c.attention_bias
    attention = q.Attention(c.num_attention_heads, c.num_key_value_heads, dim, rope, bias, out_bias=True, window=window)
    mixers = {"recurrent": GatedRecurrence(c.lru_width, c.num_attention_heads, c.conv1d_width), "attention": attention}
    mlp = q.GatedMlp(c.intermediate_size // 2, q.config_fields.act(c.hidden_activation), bias=True)
    norm = q.RMSNorm(c.rms_norm_eps, offset=1.0)
    kinds = [c.block_types[i % len(c.block_types)] for i in range(c.num_hidden_layers)]
    blocks = tuple(q.Block(mixers[kind], mlp, norm) for kind in kinds)
    tied, scale, cap = c.tie_word_embeddings, c.hidden_size**0.5, c.logits_soft_cap
    return q.Decoder(c.vocab_size, c.hidden_size, blocks, norm, tied, embed_scale=scale, logit_softcap=cap)


@q.hookimpl
def quire_architectures():
    names = q.weight_names.LLAMA | q.WeightsMapper(tuple(NAMES.items()))
    yield q.Architecture(name="RecurrentGemmaForCausalLM", decoder=decoder, names=names)
