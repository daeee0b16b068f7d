"""Weight-name tables of encoders, in addition to those of `quire_models.loading.weight_names`.

Parameters of an `EncoderModel` beside those listed there:

    embed_norm.weight             norm of the embeddings         (embed_norm); (.bias)
    types.weight                  [token types, width]           (token_types)

Each table is for checkpoints with and without the family's prefix. Heads are not in these tables: each class of a
family has its own heads, whose tables are added with `|`. Heads that a class does not use are ignored.
"""

from __future__ import annotations

from quire_models.loading.weight_names import WeightsMapper

_BERT = WeightsMapper(
    (
        ("embeddings.word_embeddings", "embed"),
        ("embeddings.position_embeddings", "positions"),
        ("embeddings.token_type_embeddings", "types"),
        ("embeddings.LayerNorm", "embed_norm"),
        ("encoder.layer", "blocks"),
        ("attention.self.query", "attn.q"),
        ("attention.self.key", "attn.k"),
        ("attention.self.value", "attn.v"),
        ("attention.output.dense", "attn.o"),
        ("attention.output.LayerNorm", "attn_in"),
        ("intermediate.dense", "mlp.up"),
        ("output.dense", "mlp.down"),
        ("output.LayerNorm", "mlp_in"),
        ("gamma", "weight"),  # early checkpoints name the parameters of norms so
        ("beta", "bias"),
    ),
    ignored=("*embeddings.position_ids", "cls.*", "lm_head.*"),
)

BERT = _BERT.and_under("bert")
"""BERT, without its pretrained pooler."""

ROBERTA = _BERT.and_under("roberta")
"""RoBERTa and XLM-RoBERTa, whose tensors are named as BERT's."""

DISTILBERT = WeightsMapper(
    (
        ("embeddings.word_embeddings", "embed"),
        ("embeddings.position_embeddings", "positions"),
        ("embeddings.LayerNorm", "embed_norm"),
        ("transformer.layer", "blocks"),
        ("attention.q_lin", "attn.q"),
        ("attention.k_lin", "attn.k"),
        ("attention.v_lin", "attn.v"),
        ("attention.out_lin", "attn.o"),
        ("sa_layer_norm", "attn_in"),
        ("ffn.lin1", "mlp.up"),
        ("ffn.lin2", "mlp.down"),
        ("output_layer_norm", "mlp_in"),
    ),
    ignored=("*embeddings.position_ids", "vocab_transform.*", "vocab_layer_norm.*", "vocab_projector.*"),
).and_under("distilbert")
"""DistilBERT, whose layers are named `transformer.layer`."""

MODERNBERT = WeightsMapper(
    (
        ("embeddings.tok_embeddings", "embed"),
        ("embeddings.norm", "embed_norm"),
        ("layers", "blocks"),
        ("attn_norm", "attn_in"),
        ("attn.Wqkv", "attn.qkv"),
        ("attn.Wo", "attn.o"),
        ("mlp_norm", "mlp_in"),
        ("mlp.Wi", "mlp.gate_up"),
        ("mlp.Wo", "mlp.down"),
        ("final_norm", "norm"),
    ),
    ignored=("decoder.*",),
).and_under("model")
"""ModernBERT, whose fused matrices have Quire's order."""

NO_POOLER = WeightsMapper(ignored=("*pooler.dense.*",))
"""Added to BERT and RoBERTa: ignores the pretrained pooler."""
