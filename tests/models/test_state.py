"""State beside keys and values: what blocks say they keep, mixers as blocks, and slots of `StateCache`."""

from __future__ import annotations

import pytest
import torch
from parts_rig import ATTENTION
from running_state import RunningState

from quire_kernels import select
from quire_models import (
    Block,
    Decoder,
    GatedMlp,
    KvShape,
    MixerBlock,
    ParallelMixers,
    RMSNorm,
    StateCache,
    StateShape,
    StateTensor,
    with_attention,
)
from quire_models.loading import weights
from quire_models.parts.state import parts_of
from quire_models.testing import ChunkSpec, build, run_tokens

MIXER, NORM, MLP = RunningState(8), RMSNorm(), GatedMlp(16)
BOTH = ParallelMixers(ATTENTION, MIXER, attn_out_scale=0.5, mixer_in_scale=2.0)
HYBRID = Decoder(
    vocab=32,
    width=16,
    blocks=(Block(MIXER, MLP, NORM), Block(BOTH, MLP, NORM), MixerBlock(MIXER, NORM), MixerBlock(MLP, NORM)),
    norm=NORM,
)
SHAPES = [None, StateShape((StateTensor((2, 3)), StateTensor((4,), float32=True)))]


def test_a_decoder_says_what_each_block_keeps() -> None:
    shape = MIXER.state_shape
    assert HYBRID.state_shapes == (shape, shape, shape, None)
    assert HYBRID.kv_shapes == (KvShape(0, 0), ATTENTION.kv_shape, KvShape(0, 0), KvShape(0, 0))
    assert MixerBlock(ATTENTION, NORM).kv_shape == ATTENTION.kv_shape
    assert Decoder(32, 16, (Block(ATTENTION, MLP, NORM),), NORM).state_shapes == (None,)


def test_parts_are_found_at_any_depth() -> None:
    found = list(parts_of(HYBRID.blocks[1]))
    assert [part for part in (BOTH, ATTENTION, MIXER, MLP) if part not in found] == []
    assert with_attention(HYBRID, attn_in_scale=3.0).blocks[1].attn.attn_in_scale == 3.0  # type: ignore[attr-defined]


def test_two_mixers_that_keep_state_cannot_share_a_block() -> None:
    with pytest.raises(ValueError, match="keep the same kind"):
        ParallelMixers(MIXER, MIXER)
    with pytest.raises(ValueError, match="keep the same kind"):
        ParallelMixers(ATTENTION, ATTENTION)


def test_chunks_give_the_same_logits_as_whole_seqs() -> None:
    model = build(HYBRID, select.reference())
    weights.randomize(model)
    prompts = [[1, 5, 9, 2, 30, 7, 7, 3], [4, 4, 8]]
    whole = run_tokens(model, HYBRID, prompts)
    chunks = [[ChunkSpec(1, 1), ChunkSpec(0, 3)], [ChunkSpec(0, 1), ChunkSpec(1, 2)]]
    for expected, found in zip(whole, run_tokens(model, HYBRID, prompts, chunks), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    other = run_tokens(model, HYBRID, [[2, *prompts[0][1:]]])[0]
    assert not torch.allclose(other[-1], whole[0][-1], atol=1e-4), "the state of the first token does not matter"


def test_slots_are_cleared_copied_and_swapped() -> None:
    cache = StateCache.allocate(SHAPES, 4, torch.bfloat16, "cpu")
    host = StateCache.allocate(SHAPES, 2, torch.bfloat16, "cpu")
    assert StateCache.slot_bytes(SHAPES, torch.bfloat16) == 2 * 6 + 4 * 4
    assert [tensor.dtype for tensor in cache.flat] == [torch.bfloat16, torch.float32]
    for tensor in cache.flat:
        tensor.copy_(torch.arange(1, 5).view(4, *[1] * (tensor.dim() - 1)).expand_as(tensor))
    cache.copy([(0, 1), (1, 0)])
    StateCache.swap(cache, host, [(3, 0)])
    cache.clear([2])
    for of_cache, of_host in zip(cache.flat, host.flat, strict=True):
        assert of_cache.flatten(1)[:, 0].tolist() == [2, 1, 0, 4]
        assert of_host.flatten(1)[:, 0].tolist() == [4, 0]
