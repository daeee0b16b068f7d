"""Random draft heads for the tiny models, in the published formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from head_rig import Tensors, write_head

from quire_testing.tiny import SIZES, VOCAB_SIZE

WIDTH = SIZES["hidden_size"]


def medusa_tensors(heads: int = 3, blocks: int = 1, bias: bool = True, seed: int = 5) -> Tensors:
    """Heads with the names of FasterDecoding."""
    generator = torch.Generator().manual_seed(seed)
    found: Tensors = {}
    for head in range(heads):
        for block in range(blocks):
            found[f"{head}.{block}.linear.weight"] = torch.randn(WIDTH, WIDTH, generator=generator) * 0.2
            if bias:
                found[f"{head}.{block}.linear.bias"] = torch.randn(WIDTH, generator=generator) * 0.2
        found[f"{head}.{blocks}.weight"] = torch.randn(VOCAB_SIZE, WIDTH, generator=generator)
    return found


def random_medusa(folder: Path) -> Path:
    return write_head(folder, {"medusa_num_heads": 3}, medusa_tensors(), "medusa_lm_head.pt")


def _block(prefix: str, generator: torch.Generator, attention_width: int) -> Tensors:
    """A decoder block with Llama's names, without its norms."""
    heads, kv_heads, dim, inner = (
        SIZES[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size")
    )
    shapes = {
        "self_attn.q_proj": (heads * dim, attention_width),
        "self_attn.k_proj": (kv_heads * dim, attention_width),
        "self_attn.v_proj": (kv_heads * dim, attention_width),
        "self_attn.o_proj": (WIDTH, heads * dim),
        "mlp.gate_proj": (inner, WIDTH),
        "mlp.up_proj": (inner, WIDTH),
        "mlp.down_proj": (WIDTH, inner),
    }
    return {f"{prefix}.{name}.weight": torch.randn(*shape, generator=generator) / 4 for name, shape in shapes.items()}


def _norm(generator: torch.Generator) -> torch.Tensor:
    return 1 + torch.randn(WIDTH, generator=generator) / 5


EAGLE_CONFIG: dict[str, Any] = {
    name: SIZES[name]
    for name in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
    )
} | {"num_hidden_layers": 1, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0}


def eagle_tensors(bias: bool = True, own_table: bool = False, seed: int = 6) -> Tensors:
    """An EAGLE head with the names of SafeAILab."""
    generator = torch.Generator().manual_seed(seed)
    found = _block("layers.0", generator, WIDTH)
    found["layers.0.post_attention_layernorm.weight"] = _norm(generator)
    found["fc.weight"] = torch.randn(WIDTH, 2 * WIDTH, generator=generator) / 8
    if bias:
        found["fc.bias"] = torch.randn(WIDTH, generator=generator)
    if own_table:
        found["embed_tokens.weight"] = torch.randn(VOCAB_SIZE, WIDTH, generator=generator)
    return found


def eagle3_tensors(draft_vocab: int = 200, seed: int = 7) -> Tensors:
    """An EAGLE 3 head with the names of SafeAILab, over the last `draft_vocab` tokens of each second kind."""
    generator = torch.Generator().manual_seed(seed)
    found = _block("midlayer", generator, 2 * WIDTH)
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        found[f"midlayer.{name}.weight"] = _norm(generator)
    found["norm.weight"] = _norm(generator)
    found["fc.weight"] = torch.randn(WIDTH, 3 * WIDTH, generator=generator) / 8
    found["lm_head.weight"] = torch.randn(draft_vocab, WIDTH, generator=generator)
    chosen = torch.randperm(VOCAB_SIZE, generator=generator)[:draft_vocab].sort().values
    found["d2t"] = chosen - torch.arange(draft_vocab)
    found["t2d"] = torch.zeros(VOCAB_SIZE, dtype=torch.bool).index_fill(0, chosen, True)
    return found


def random_eagle(folder: Path) -> Path:
    config = EAGLE_CONFIG | {"architectures": ["EagleLlamaForCausalLM"], "model_type": "eagle"}
    return write_head(folder, config, eagle_tensors(own_table=True))


def random_eagle3(folder: Path, before_blocks: tuple[int, ...] | None = None) -> Path:
    """before_blocks: those whose inputs it reads; None = as in the paper's code, which needs a model of four blocks."""
    config = EAGLE_CONFIG | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 200}
    if before_blocks is not None:
        config["eagle_aux_hidden_state_layer_ids"] = list(before_blocks)
    return write_head(folder, config, eagle3_tensors())
