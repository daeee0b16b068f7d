"""Tables of the tensor names of encoders; see `quire_models.names` for what a table is, and for our names.

Parameters of an `EncoderModel` beside those listed there:

    embed_norm.weight             norm of the embeddings         (embed_norm); (.bias)
    types.weight                  [token types, width]           (token_types)

Each table is for checkpoints with the family's prefix and without it. Heads are left out: the classes of a family have
heads of their own, whose tables come on top. A head that a class has no use for is ignored.
"""

from __future__ import annotations

from quire_models.names import Names

_BERT = Names(
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
        ("gamma", "weight"),  # so the parameters of norms were called in checkpoints of the first years
        ("beta", "bias"),
    ),
    ignored=("*embeddings.position_ids", "cls.*", "lm_head.*"),
)

BERT = _BERT.and_under("bert")
"""BERT; its pretrained pooler is left out."""

ROBERTA = _BERT.and_under("roberta")
"""RoBERTa and XLM-RoBERTa, which name their tensors as BERT does."""

DISTILBERT = Names(
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
"""DistilBERT."""

MODERNBERT = Names(
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
"""ModernBERT; matrices are fused in our order."""

NO_POOLER = Names(ignored=("*pooler.dense.*",))
"""On top of BERT and RoBERTa: the pretrained pooler is not used."""
