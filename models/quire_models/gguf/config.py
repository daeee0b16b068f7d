"""config.json and generation_config.json of a GGUF model, as transformers would have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quire_models.gguf.file.metadata import Metadata
from quire_models.gguf.rope import DEFAULT_THETA, Factors, rope_parameters

GEMMA3_LOCAL_THETA = 10_000.0
GEMMA3_PATTERN, GEMMA2_PATTERN = 6, 2
"""Of so many layers of Gemma the last has full attention, the others a sliding window."""


@dataclass(frozen=True)
class Source:
    """What a config is made from. tensors: shapes by names in GGUF. factors: reads tables of rotary factors.

    tokens: number of tokens of the tokenizer. roles: ids of its special tokens. dtype: to run in.
    """

    metadata: Metadata
    tensors: Mapping[str, tuple[int, ...]]
    factors: Factors
    tokens: int
    roles: Mapping[str, int]
    dtype: str

    @property
    def tied(self) -> bool:
        return "output.weight" not in self.tensors

    def has(self, module: str) -> bool:
        """Whether the first block has this tensor."""
        return f"blk.0.{module}" in self.tensors


def config(source: Source) -> dict[str, Any]:
    """The content of config.json. Raises CheckpointError for metadata that is missing or not valid."""
    metadata = source.metadata
    build = _CONFIGS.get(metadata.architecture)
    if build is None:
        raise metadata.unknown_architecture(sorted(_CONFIGS))
    embedding = source.tensors.get("token_embd.weight", (0,))
    if embedding[0] < source.tokens:
        raise metadata.error("tokenizer.ggml.tokens", f"has {source.tokens} tokens; the model embeds {embedding[0]}")
    shared = {"vocab_size": embedding[0], "dtype": source.dtype, "tie_word_embeddings": source.tied}
    # all are set, because the defaults of transformers are those of other models
    ids = {f"{role}_id": source.roles.get(role) for role in ("bos_token", "eos_token", "pad_token")}
    return {**shared, **ids, **build(source)}


def _decoder(source: Source, architecture: str, model_type: str, **more: Any) -> dict[str, Any]:
    """The config of a decoder with the fields of Llama. more: further fields."""
    m = source.metadata
    heads, width = m.size("attention.head_count"), m.size("embedding_length")
    if not heads:
        raise m.error("attention.head_count", "must be above 0")
    head_dim = m.size("attention.key_length", width // heads)
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": width,
        "num_hidden_layers": m.size("block_count"),
        "intermediate_size": m.size("feed_forward_length", 0),
        "num_attention_heads": heads,
        "num_key_value_heads": m.size("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": m.size("context_length"),
        "rms_norm_eps": m.number("attention.layer_norm_rms_epsilon"),
        "hidden_act": "silu",
        "rope_parameters": rope_parameters(m, head_dim, source.factors),
        **more,
    }


def _llama(source: Source) -> dict[str, Any]:
    """Llama, Mistral and Mixtral, which llama.cpp does not tell apart."""
    experts = source.metadata.size("expert_count", 0)
    if experts:
        return _decoder(
            source,
            "MixtralForCausalLM",
            "mixtral",
            num_local_experts=experts,
            num_experts_per_tok=source.metadata.size("expert_used_count"),
            sliding_window=None,
        )
    return _decoder(
        source,
        "LlamaForCausalLM",
        "llama",
        attention_bias=source.has("attn_q.bias"),
        mlp_bias=source.has("ffn_up.bias"),
    )


def _qwen2(source: Source) -> dict[str, Any]:
    return _decoder(source, "Qwen2ForCausalLM", "qwen2", use_sliding_window=False)


def _qwen3(source: Source) -> dict[str, Any]:
    return _decoder(source, "Qwen3ForCausalLM", "qwen3", use_sliding_window=False, attention_bias=False)


def _experts(source: Source) -> dict[str, Any]:
    m = source.metadata
    return {
        "num_experts": m.size("expert_count"),
        "num_experts_per_tok": m.size("expert_used_count"),
        "moe_intermediate_size": m.size("expert_feed_forward_length"),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _qwen2_moe(source: Source) -> dict[str, Any]:
    shared = source.metadata.size("expert_shared_feed_forward_length", 0)
    more = {"norm_topk_prob": False, "shared_expert_intermediate_size": shared, **_experts(source)}
    return _decoder(source, "Qwen2MoeForCausalLM", "qwen2_moe", **more)


def _qwen3_moe(source: Source) -> dict[str, Any]:
    more = {"norm_topk_prob": True, "sliding_window": None, "attention_bias": False, **_experts(source)}
    return _decoder(source, "Qwen3MoeForCausalLM", "qwen3_moe", **more)


def _gemma(source: Source, number: str, layers: int, **more: Any) -> dict[str, Any]:
    """layers: number of blocks of the largest model, which scales its queries differently."""
    m = source.metadata
    fields = _decoder(source, f"Gemma{number}ForCausalLM", f"gemma{number}{'_text' if number == '3' else ''}")
    heads, blocks = fields["num_attention_heads"], fields["num_hidden_layers"]
    scalar = fields["hidden_size"] // heads if layers and blocks == layers else fields["head_dim"]
    act = "gelu_pytorch_tanh"
    return {
        **fields,
        "hidden_act": act,
        "hidden_activation": act,
        "attention_bias": False,
        "query_pre_attn_scalar": scalar,
        "final_logit_softcapping": m.number("final_logit_softcapping", 0) or None,
        "attn_logit_softcapping": m.number("attn_logit_softcapping", 0) or None,
        **more,
    }


def _windows(source: Source, every: int, default: int) -> dict[str, Any]:
    """The sliding window, and which layers have it. every: the last of so many layers does not, if not stated."""
    m = source.metadata
    blocks, window = m.size("block_count"), m.size("attention.sliding_window", default)
    pattern = m.get("attention.sliding_window_pattern")
    if isinstance(pattern, int) and not isinstance(pattern, bool):
        every, pattern = pattern, None
    if not window or every < 1:
        sliding = [False] * blocks
    elif pattern is None:
        sliding = [every > 1 and (layer + 1) % every != 0 for layer in range(blocks)]
    else:
        stated = m.numbers("attention.sliding_window_pattern") or ()
        if len(stated) < blocks:
            raise m.error("attention.sliding_window_pattern", f"has {len(stated)} elements for {blocks} blocks")
        sliding = [bool(value) for value in stated[:blocks]]
    kinds = ["sliding_attention" if one else "full_attention" for one in sliding]
    return {"layer_types": kinds, "sliding_window": window or default or 1}


def _gemma1(source: Source) -> dict[str, Any]:
    return _gemma(source, "", 0)


def _gemma2(source: Source) -> dict[str, Any]:
    return _gemma(source, "2", 46, **_windows(source, GEMMA2_PATTERN, 4096))


def _gemma3(source: Source) -> dict[str, Any]:
    m = source.metadata
    fields = _gemma(source, "3", 62, **_windows(source, GEMMA3_PATTERN, 0))
    local = {"rope_type": "default", "rope_theta": m.number("rope.freq_base_swa", GEMMA3_LOCAL_THETA)}
    full = dict(fields["rope_parameters"])
    full["rope_theta"] = m.number("rope.freq_base", DEFAULT_THETA)
    return {**fields, "rope_parameters": {"full_attention": full, "sliding_attention": local}}


def _phi3(source: Source) -> dict[str, Any]:
    m = source.metadata
    window = m.size("attention.sliding_window", 0) or None
    if window is not None and window >= m.size("context_length"):
        window = None
    original = m.size("rope.scaling.original_context_length", m.size("context_length"))
    more = {"sliding_window": window, "original_max_position_embeddings": original}
    fields = _decoder(source, "Phi3ForCausalLM", "phi3", **more)
    del fields["head_dim"]  # transformers derives it
    return fields


def _olmo2(source: Source) -> dict[str, Any]:
    if source.metadata.size("attention.sliding_window", 0):
        return _decoder(source, "Olmo3ForCausalLM", "olmo3", **_windows(source, 4, 0))
    return _decoder(source, "Olmo2ForCausalLM", "olmo2", attention_bias=False)


def _granite(source: Source) -> dict[str, Any]:
    m = source.metadata
    head_dim = m.size("embedding_length") // max(1, m.size("attention.head_count"))
    return _decoder(
        source,
        "GraniteForCausalLM",
        "granite",
        attention_bias=source.has("attn_q.bias"),
        mlp_bias=source.has("ffn_up.bias"),
        attention_multiplier=m.number("attention.scale", head_dim**-0.5),
        embedding_multiplier=m.number("embedding_scale", 1),
        residual_multiplier=m.number("residual_scale", 1),
        logits_scaling=m.number("logit_scale", 1),
    )


def _gpt2(source: Source) -> dict[str, Any]:
    m = source.metadata
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": m.size("embedding_length"),
        "n_layer": m.size("block_count"),
        "n_head": m.size("attention.head_count"),
        "n_inner": m.size("feed_forward_length"),
        "n_positions": m.size("context_length"),
        "layer_norm_epsilon": m.number("attention.layer_norm_epsilon"),
        "activation_function": "gelu_new",
    }


def _bert(source: Source) -> dict[str, Any]:
    """BERT, and RoBERTa, whose positions the converter cut so that they start at 0."""
    m = source.metadata
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_size": m.size("embedding_length"),
        "num_hidden_layers": m.size("block_count"),
        "intermediate_size": m.size("feed_forward_length"),
        "num_attention_heads": m.size("attention.head_count"),
        "max_position_embeddings": source.tensors.get("position_embd.weight", (m.size("context_length"),))[0],
        "layer_norm_eps": m.number("attention.layer_norm_epsilon"),
        "type_vocab_size": source.tensors.get("token_types.weight", (0,))[0],
        "hidden_act": "gelu",
    }


_CONFIGS: Mapping[str, Callable[[Source], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen2moe": _qwen2_moe,
    "qwen3moe": _qwen3_moe,
    "gemma": _gemma1,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "olmo2": _olmo2,
    "granite": _granite,
    "gpt2": _gpt2,
    "bert": _bert,
}
