"""Architectures whose checkpoints bring code, which transformers lacks: compared with their published blocks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_rig import greedy, rig_of
from family_checks import plugins
from safetensors.torch import save_file
from torch import Tensor

from quire_testing import check_architecture
from quire_testing.tiny import SIZES, byte_tokenizer, reference_model

WIDTH, VOCAB = SIZES["hidden_size"], SIZES["vocab_size"]
Logits = Callable[[Tensor], Tensor]

# --- Baichuan 13B: Llama with ALiBi ---------------------------------------------------------------------

HEADS = 6
SLOPES = (2**-2.0, 2**-4.0, 2**-6.0, 2**-8.0, 2**-1.0, 2**-3.0)
"""Of six heads: powers of 2 ** (-8 / 4), then every second power of 2 ** (-8 / 8)."""


class NoRotation(torch.nn.Module):
    """In place of Llama's rotary embedding."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        ones = torch.ones(1, position_ids.shape[-1], 16)
        return ones, 0 * ones


def alibi(length: int) -> Tensor:
    """Causal mask and ALiBi, [1, heads, tokens, tokens]."""
    ahead = torch.arange(length) - torch.arange(length)[:, None]
    return (torch.tensor(SLOPES)[:, None, None] * ahead).masked_fill(ahead > 0, -torch.inf)[None]


def baichuan(folder: Path) -> Logits:
    sizes = {"hidden_size": 16 * HEADS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS}
    model = reference_model("LlamaForCausalLM", **sizes)
    model.model.rotary_emb = NoRotation()
    with torch.no_grad():
        model.lm_head.weight.copy_(F.normalize(model.lm_head.weight))
    state = dict(model.state_dict())
    for layer in range(SIZES["num_hidden_layers"]):
        path = f"model.layers.{layer}.self_attn"
        state[f"{path}.W_pack.weight"] = torch.cat([state.pop(f"{path}.{part}_proj.weight") for part in "qkv"])
    config = {
        **{key: value for key, value in SIZES.items() if key != "max_position_embeddings"},
        "architectures": ["BaichuanForCausalLM"],
        "model_type": "baichuan",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        **sizes,
        "model_max_length": 512,
    }
    write(folder, config, state)
    return lambda ids: model(ids, attention_mask=alibi(ids.shape[1]), use_cache=False).logits[0]


# --- Phi-3-small ----------------------------------------------------------------------------------------

PHI = {
    "architectures": ["Phi3SmallForCausalLM"],
    "model_type": "phi3small",
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "ff_intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "layer_norm_epsilon": 1e-5,
    "rope_embedding_base": 1e4,
    "rope_position_scale": 1.0,
    "blocksparse_homo_head_pattern": False,
    "blocksparse_block_size": 4,
    "blocksparse_num_local_blocks": 2,
    "blocksparse_vert_stride": 3,
    "dense_attention_every_n_layers": 2,
    "mup_use_scaling": True,
    "mup_width_multiplier": 2.0,
    "mup_attn_multiplier": 3.0,
    "mup_embedding_multiplier": 1.5,
    "dummy_token_indices": [],
}


class Phi3Small:
    """The blocks of arXiv 2404.14219 as its code computes them, for one sequence."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.c = config
        generator = torch.Generator().manual_seed(0)
        heads, size, hidden = 4, 16, config["ff_intermediate_size"]
        shapes = {
            "self_attn.query_key_value": ((heads + 4) * size, WIDTH),
            "self_attn.dense": (WIDTH, heads * size),
            "mlp.up_proj": (2 * hidden, WIDTH),
            "mlp.down_proj": (WIDTH, hidden),
        }
        self.state = {"model.embed_tokens.weight": torch.randn(VOCAB, WIDTH, generator=generator)}
        layers = [f"model.layers.{layer}." for layer in range(2)]
        for path, (outputs, inputs) in [(layer + name, shape) for layer in layers for name, shape in shapes.items()]:
            weight = torch.randn(outputs, inputs, generator=generator) * 1.5 * inputs**-0.5
            self.state |= {f"{path}.weight": weight, f"{path}.bias": 0.1 * torch.randn(outputs, generator=generator)}
        norms = [layer + name for layer in layers for name in ("input_layernorm", "post_attention_layernorm")]
        for path in (*norms, "model.final_layernorm"):
            noise = 0.1 * torch.randn(2, WIDTH, generator=generator)
            self.state |= {f"{path}.weight": 1 + noise[0], f"{path}.bias": noise[1]}

    def __call__(self, ids: Tensor) -> Tensor:
        """ids [1, tokens] -> [tokens, vocab]."""
        c, table = self.c, self.state["model.embed_tokens.weight"]
        x = table[ids[0]] * c["mup_embedding_multiplier"]
        for layer in range(2):
            path = f"model.layers.{layer}."
            x = x + self.attention(path + "self_attn.", self.norm(path + "input_layernorm", x), sparse=layer == 0)
            x = x + self.mlp(path + "mlp.", self.norm(path + "post_attention_layernorm", x))
        return self.norm("model.final_layernorm", x) @ table.T / c["mup_width_multiplier"]

    def norm(self, path: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, (WIDTH,), self.state[f"{path}.weight"], self.state[f"{path}.bias"], 1e-5)

    def linear(self, path: str, x: Tensor) -> Tensor:
        return F.linear(x, self.state[f"{path}.weight"], self.state[f"{path}.bias"])

    def mlp(self, path: str, x: Tensor) -> Tensor:
        limit, both = self.c["gegelu_limit"], self.linear(path + "up_proj", x)
        gate, up = both[:, 0::2].clamp(max=limit), both[:, 1::2].clamp(-limit, limit)
        return self.linear(path + "down_proj", gate * torch.sigmoid(1.702 * gate) * (up + 1))

    def attention(self, path: str, x: Tensor, sparse: bool) -> Tensor:
        grouped = self.linear(path + "query_key_value", x).view(len(x), 2, 4, 16)  # two queries, a key, a value
        q, k = (self.rotated(t) for t in (grouped[:, :, :2].flatten(1, 2), grouped[:, :, 2].repeat_interleave(2, 1)))
        v = grouped[:, :, 3].repeat_interleave(2, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * self.c["mup_attn_multiplier"] / 16
        at = torch.arange(len(x))
        visible = (at <= at[:, None]).expand(4, -1, -1)
        if sparse:
            blocks, stride = at // self.c["blocksparse_block_size"], self.c["blocksparse_vert_stride"]
            local = blocks[:, None] - blocks < self.c["blocksparse_num_local_blocks"]
            stripes = (blocks + torch.arange(4)[:, None] + 1) % stride == 0  # [heads, keys]
            visible = visible & (local | stripes[:, None])
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        return self.linear(path + "dense", torch.einsum("hqk,khd->qhd", weights, v).flatten(1))

    def rotated(self, x: Tensor) -> Tensor:
        angles = torch.arange(len(x))[:, None] * 1e4 ** (-torch.arange(0, 16, 2) / 16)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def phi3_small(limit: float) -> Callable[[Path], Logits]:
    def build(folder: Path) -> Logits:
        model = Phi3Small({**PHI, "gegelu_limit": limit})
        write(folder, model.c, model.state)
        return model

    return build


def write(folder: Path, config: dict[str, Any], state: dict[str, Tensor]) -> None:
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "model.safetensors")


@pytest.mark.parametrize("limit", [20.0, 1.5])
def test_phi3_small_has_the_logits_of_its_published_blocks(limit: float) -> None:
    check_architecture("Phi3SmallForCausalLM", reference=phi3_small(limit))


def test_phi3_small_never_says_a_token_without_text(tmp_path: Path) -> None:
    model = Phi3Small({**PHI, "gegelu_limit": 20.0, "dummy_token_indices": list(range(0, VOCAB, 2))})
    write(tmp_path, model.c, model.state)
    byte_tokenizer(tmp_path)
    with rig_of(tmp_path, plugins(), num_pages=10) as rig:
        answer = rig.add([72, 105], greedy(20, ignore_eos=True))
        assert all(token % 2 for token in rig.drain()[answer, 0].token_ids)


def test_baichuan_13b_has_the_logits_of_llama_with_alibi() -> None:
    check_architecture("BaichuanForCausalLM", reference=baichuan)
