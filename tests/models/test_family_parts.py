"""Parts that families need beyond Llama's. The families themselves are tested in tests/families/."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from parts_rig import DECODER, model_of
from torch import nn

from quire_kernels import select
from quire_models import Block, Decoder, GatedMlp, LayerNorm, Mlp, ParallelBlock, RMSNorm
from quire_models.testing import ChunkSpec, ModelDriver, build


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
