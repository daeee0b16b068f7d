"""Parts that families need beyond Llama's: each makes an architecture of transformers in a few lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from parts_rig import DECODER, model_of
from torch import Tensor, nn

from quire.records import Architecture
from quire_kernels import select
from quire_models import Attention, Block, Decoder, GatedMlp, LayerNorm, Mlp, ParallelBlock, PerHead, RMSNorm, Rope
from quire_models.loading import weight_names as names
from quire_models.testing import ChunkSpec, ModelDriver, build
from quire_testing import check_architecture


def attention(c: Any, **more: Any) -> Attention:
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    return Attention(c.num_attention_heads, c.num_key_value_heads, head_dim, Rope.from_config(c, head_dim), **more)


def decoder(c: Any, block: Any, norm: Any) -> Decoder:
    return Decoder(c.vocab_size, c.hidden_size, (block,) * c.num_hidden_layers, norm)


def nemotron(c: Any) -> Decoder:
    norm = LayerNorm(c.norm_eps, offset=1.0)
    return decoder(c, Block(attention(c), Mlp(c.intermediate_size, "relu2", bias=False), norm), norm)


def stablelm(c: Any) -> Decoder:
    norm = LayerNorm(c.layer_norm_eps)
    mine = attention(c, qk_norm=PerHead(LayerNorm(c.layer_norm_eps)))
    mlp = GatedMlp(c.intermediate_size)
    return decoder(c, ParallelBlock(mine, mlp, norm) if c.use_parallel_residual else Block(mine, mlp, norm), norm)


@dataclass(frozen=True)
class Xielu:
    """The activation of Apertus (arXiv 2411.13010), with two learnt numbers."""

    def build(self, width: int, builder: Any) -> nn.Module:
        return XieluModule(builder)


class XieluModule(nn.Module):
    def __init__(self, builder: Any) -> None:
        super().__init__()
        self.alpha_p, self.alpha_n = builder.parameter(1), builder.parameter(1)

    def forward(self, x: Tensor) -> Tensor:
        up, down = nn.functional.softplus(self.alpha_p), 0.5 + nn.functional.softplus(self.alpha_n)
        return torch.where(x > 0, up * x * x, (torch.expm1(x.clamp(max=-1e-6)) - x) * down) + 0.5 * x


def apertus(c: Any) -> Decoder:
    norm = RMSNorm(c.rms_norm_eps)
    mlp = Mlp(c.intermediate_size, Xielu(), bias=False)
    return decoder(c, Block(attention(c, qk_norm=norm), mlp, norm), norm)


MLP = names.WeightsMapper((("up_proj", "mlp.up"), ("mlp.up_proj", "mlp.up"), ("mlp.down_proj", "mlp.down")))
STABLELM = names.LLAMA | names.WeightsMapper((("q_layernorm.norms", "q_norm"), ("k_layernorm.norms", "k_norm")))
APERTUS = names.LLAMA | names.WeightsMapper(
    (("attention_layernorm", "attn_in"), ("feedforward_layernorm", "mlp_in"), ("act_fn", "act")),
    ignored=("*.act_fn.beta", "*.act_fn.eps"),
)
SMALL = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}}


@pytest.mark.parametrize(
    ("record", "settings"),
    [
        (Architecture("NemotronForCausalLM", nemotron, names.LLAMA), {}),
        (Architecture("StableLmForCausalLM", stablelm, STABLELM), {"qk_layernorm": True}),
        (
            Architecture("StableLmForCausalLM", stablelm, STABLELM),
            {"qk_layernorm": True, "use_parallel_residual": True, "num_key_value_heads": 4},
        ),
        (Architecture("ApertusForCausalLM", apertus, APERTUS), SMALL),
    ],
    ids=["an offset in LayerNorm", "a norm per head", "a parallel block", "an activation of a plugin"],
)
def test_a_family_equals_transformers(record: Architecture, settings: dict[str, Any]) -> None:
    check_architecture(record, **settings)


def test_a_gated_mlp_takes_an_activation_of_ones_own() -> None:
    class Silu:
        def build(self, width: int, builder: Any) -> nn.Module:
            return nn.SiLU()

    theirs, ours = (model_of(with_mlp(GatedMlp(24, act))) for act in ("silu", Silu()))
    found = [ModelDriver(model, model.part, [[3, 4, 5]]).step([ChunkSpec(0, 3)])[0] for model in (theirs, ours)]
    torch.testing.assert_close(*found)


def with_mlp(mlp: GatedMlp) -> Decoder:
    return Decoder(20, 16, (Block(DECODER.blocks[0].attn, mlp, RMSNorm(affine=False)),) * 2, RMSNorm())


def test_a_norm_without_weight_has_no_parameters() -> None:
    model = build(Decoder(20, 16, (), RMSNorm(affine=False)), select.reference())
    assert model.norm is not None
    assert list(model.norm.parameters()) == []
    x = torch.randn(3, 16)
    torch.testing.assert_close(model.norm(x), x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


@pytest.mark.parametrize("norms", [1, 2])
def test_a_parallel_block_has_one_norm_or_two(norms: int) -> None:
    model = model_of(Decoder(20, 16, (ParallelBlock(DECODER.blocks[0].attn, Mlp(24), LayerNorm(), norms),), None))
    (block,) = model.blocks
    assert (block.mlp_in is not None) == (norms == 2)
    assert ModelDriver(model, model.part, [[3, 4]]).step([ChunkSpec(0, 2)])[0].isfinite().all()
