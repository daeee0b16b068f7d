"""Blocks that read a source, recorded as a program, against the same blocks run one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from quire.records import OpQuery
from quire_kernels import reference, select
from quire_kernels.cpu import build, isa
from quire_kernels.cpu.compiled.program import Program
from quire_models import (
    Attention,
    CrossAttention,
    CrossAttentionBlock,
    CrossAttentionBuffers,
    Decoder,
    DecoderModel,
    EncoderInput,
    LayerNorm,
    Mlp,
    Positions,
)
from quire_models.testing import ChunkSpec, ModelDriver, build as build_decoder

pytestmark = pytest.mark.skipif(not (isa.available() and build.compiler()), reason="the C++ ops cannot be compiled")

PAGE, LENGTH = 16, 75
SOURCE_PAGES = 8
BLOCK = CrossAttentionBlock(Attention(4, 2, 16, qkv_bias=True), CrossAttention(8, 2, 16), Mlp(96), LayerNorm())
DECODER = Decoder(
    vocab=99,
    width=64,
    blocks=(BLOCK,) * 2,
    norm=LayerNorm(),
    tied=True,
    positions=Positions(64),
    encoder_input=EncoderInput(LENGTH),
)


def model_of(dtype: str, recorded: bool) -> DecoderModel:
    """The same random weights, whether it is recorded or not."""
    ops = select.choose(OpQuery("cpu", dtype))
    model = build_decoder(
        DECODER, ops if recorded else replace(ops, fused_blocks=reference.fused_blocks), getattr(torch, dtype)
    )
    made = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=made) * 0.15)
    for module in model.modules():
        if hasattr(module, "process_weights"):
            module.process_weights()
    return model


def steps_of(model: DecoderModel) -> list[Tensor]:
    """Hidden states of steps of one, several and again one token of each seq, whose sources are noise."""
    texts = [list(range(40)), list(range(50, 63))]
    driver = ModelDriver(model, DECODER, texts, page_size=PAGE)
    made = torch.Generator().manual_seed(1)
    shapes = [(300, *pool.shape[1:]) for pool in driver.kv.k]
    k, v = (tuple(torch.randn(shape, generator=made).to(model.dtype) for shape in shapes) for _ in range(2))
    driver.kv = replace(driver.kv, k=k, v=v)
    buffers = CrossAttentionBuffers(64, LENGTH, SOURCE_PAGES, "cpu")
    found = []
    for counts in ((1, 1), (37, 11), (1, 1), (1, 0)):
        pieces = [ChunkSpec(seq, count) for seq, count in enumerate(counts) if count]
        owners = np.repeat([piece.seq for piece in pieces], [piece.count for piece in pieces])
        forward = driver.forward(pieces)
        forward.cross_attention = buffers.fill((100 + 50 * owners[:, None] + np.arange(SOURCE_PAGES)).astype(np.int32))
        found.append(model(forward).clone())
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_that_read_sources_are_recorded_and_give_the_same(dtype: str) -> None:
    model = model_of(dtype, True)
    one_by_one = steps_of(model_of(dtype, False))
    for ours, theirs in zip(steps_of(model), one_by_one, strict=True):
        assert torch.equal(ours, theirs)
    (piece,) = model.ops.fused_blocks(tuple(model.blocks), DECODER.width).stages  # type: ignore[attr-defined]
    assert isinstance(piece, Program)
    assert not torch.equal(one_by_one[0][0], one_by_one[0][1])
