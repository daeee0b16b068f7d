"""Every bundled decoder with tiny random weights, and transformers' model of the same folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import torch
import transformers
from torch import Tensor

from quire.records import Architecture, OpQuery
from quire_kernels import select
from quire_models.modules.blocks import DecoderModel
from quire_models.parts.decoder import Decoder
from quire_models.testing import ChunkSpec, build, load_state_dict_into

TOLERANCE = 1e-4


VOCAB = 97


FAMILIES = ("gemma", "gpt2", "granite", "llama", "mistral", "olmo", "opt", "phi", "qwen")


@dataclass(frozen=True)
class Case:
    """An architecture at a tiny size; `config` are fields that differ from COMMON."""

    architecture: str
    config_class: str
    config: Mapping[str, Any] = field(default_factory=dict)
    own_sizes: bool = False


COMMON: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


GEMMA = {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 24}


MOE = {"head_dim": 16, "num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2}


OPT = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "ffn_dim": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "word_embed_proj_dim": 48,
}


GPT2 = {"vocab_size": VOCAB, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1}


SHORT = {"short_factor": [1.0, 1.1, 1.3, 1.5, 1.8, 2.0], "long_factor": [1.5, 2.0, 3.0, 4.0, 5.0, 6.0]}


LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 16, **SHORT}


ORIGINAL = {"rope_theta": 1e4, "original_max_position_embeddings": 16}


def llama(**config: Any) -> Case:
    return Case("LlamaForCausalLM", "LlamaConfig", config)


def scaled(kind: str, **parameters: Any) -> Case:
    return llama(rope_parameters={"rope_type": kind, "rope_theta": 1e4, **parameters})


CASES = {
    "llama": llama(),
    "llama tied, with biases": llama(tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "llama linear": scaled("linear", factor=2.0),
    "llama llama3": scaled("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **ORIGINAL),
    "llama yarn": scaled("yarn", factor=4.0, **ORIGINAL),
    "llama yarn with mscale": scaled("yarn", factor=4.0, mscale=0.7, mscale_all_dim=1.0, truncate=False, **ORIGINAL),
    "mistral": Case("MistralForCausalLM", "MistralConfig", {"sliding_window": 5}),
    "mixtral": Case("MixtralForCausalLM", "MixtralConfig", {"num_local_experts": 4}),
    "qwen2": Case("Qwen2ForCausalLM", "Qwen2Config", {"tie_word_embeddings": True}),
    "qwen2 with windows": Case(
        "Qwen2ForCausalLM", "Qwen2Config", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    ),
    "qwen3": Case("Qwen3ForCausalLM", "Qwen3Config", {"head_dim": 16}),
    "qwen3 moe": Case("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**MOE, "norm_topk_prob": True}),
    "qwen3 moe, some layers dense": Case("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**MOE, "mlp_only_layers": [0]}),
    "phi3": Case("Phi3ForCausalLM", "Phi3Config", {"sliding_window": 6}),
    "phi3 partly rotary": Case(
        "Phi3ForCausalLM",
        "Phi3Config",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
    "gemma2": Case("Gemma2ForCausalLM", "Gemma2Config", GEMMA),
    "gemma3": Case(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**GEMMA, "num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "olmo2": Case("Olmo2ForCausalLM", "Olmo2Config"),
    "granite": Case(
        "GraniteForCausalLM",
        "GraniteConfig",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.5,
            "logits_scaling": 4.0,
        },
    ),
    "gpt2": Case("GPT2LMHeadModel", "GPT2Config", GPT2, own_sizes=True),
    "gpt2 scaled by layer": Case(
        "GPT2LMHeadModel", "GPT2Config", {**GPT2, "scale_attn_by_inverse_layer_idx": True}, own_sizes=True
    ),
    "opt": Case("OPTForCausalLM", "OPTConfig", OPT, own_sizes=True),
    "opt with norms after": Case(
        "OPTForCausalLM",
        "OPTConfig",
        {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 32},
        own_sizes=True,
    ),
}


LENGTH_CASES = {
    "dynamic": scaled("dynamic", factor=2.0),
    "longrope": scaled("longrope", factor=4.0, **ORIGINAL, **SHORT),
    "phi3 longrope": Case(
        "Phi3ForCausalLM", "Phi3Config", {"original_max_position_embeddings": 16, "rope_parameters": LONGROPE}
    ),
}


@cache
def architectures() -> Mapping[str, Architecture]:
    modules = [import_module(f"quire_plugins.architectures.{family}") for family in FAMILIES]
    return {a.name: a for module in modules for a in module.quire_architectures()}


@dataclass(frozen=True)
class Pair:
    """The same weights here and in transformers."""

    theirs: Any
    ours: DecoderModel
    decoder: Decoder

    def logits(self, tokens: Tensor) -> Tensor:
        """What transformers gives for one whole prompt, [len, vocab]."""
        with torch.no_grad():
            logits: Tensor = self.theirs(tokens[None]).logits[0]
        return logits


@cache
def pair(case_id: str, reference: bool = False, page_size: int = 16) -> Pair:
    case = {**CASES, **LENGTH_CASES}[case_id]
    torch.manual_seed(0)
    sizes = {} if case.own_sizes else COMMON
    config = getattr(transformers, case.config_class)(**{**sizes, **case.config}, attn_implementation="eager")
    theirs = getattr(transformers, case.architecture)(config).eval().float()
    middle = 0.0 if "Gemma" in case.architecture else 1.0
    for name, parameter in theirs.named_parameters():
        if "norm" in name or "ln_" in name:
            torch.nn.init.normal_(parameter, middle if name.endswith("weight") else 0.0, 0.3)
        else:
            torch.nn.init.normal_(parameter, 0.0, 0.15)
    architecture = architectures()[case.architecture]
    decoder = architecture.decoder(config)
    ops = select.reference() if reference else select.choose(OpQuery("cpu", "float32", page_size=page_size))
    ours = build(decoder, ops)
    load_state_dict_into(ours, decoder, architecture.names, theirs.state_dict())
    return Pair(theirs, ours, decoder)


def prompts(*lengths: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, VOCAB, (length,), generator=generator) for length in lengths]


def compare(got: list[Tensor], want: list[Tensor]) -> None:
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, theirs, atol=TOLERANCE, rtol=0)


AWKWARD = [[ChunkSpec(0, n)] for n in (1, 5, 1, 1, 7, 3)]


MIXED = [
    [ChunkSpec(0, 3), ChunkSpec(1, 1), ChunkSpec(2, 7)],
    [ChunkSpec(2, 1), ChunkSpec(0, 5)],
    [ChunkSpec(0, 1), ChunkSpec(1, 1), ChunkSpec(2, 1), ChunkSpec(3, 1)],
    [ChunkSpec(1, 2), ChunkSpec(0, 1), ChunkSpec(2, 13)],
]
