"""What a Mamba-2 of the geometry of mamba2-130m takes for each running sequence, and for checkpoints."""

from __future__ import annotations

import pytest
import torch
from transformers import Mamba2Config

from quire.engine.memory.state_budget import CHECKPOINT_SHARE, plan_slots
from quire.hooks import registry
from quire.settings.model_config import ModelConfig
from quire_models import KVCache, StateCache

LAYERS, HEADS, HEAD_DIM, STATE, KERNEL = 24, 24, 64, 128, 4
RECURRENT = HEADS * HEAD_DIM * STATE * 4  # float32
CONVOLVED = (HEADS * HEAD_DIM + 2 * STATE) * (KERNEL - 1) * 2  # bfloat16
NECESSARY = LAYERS * (RECURRENT + CONVOLVED)
"""Bytes of the state of one sequence."""


@pytest.fixture(scope="module")
def decoder() -> object:
    config = Mamba2Config(
        hidden_size=768,
        num_hidden_layers=LAYERS,
        num_heads=HEADS,
        head_dim=HEAD_DIM,
        state_size=STATE,
        conv_kernel=KERNEL,
        n_groups=1,
        vocab_size=50288,
    )
    return registry.load(None).by_hook("quire_architectures")["Mamba2ForCausalLM"].decoder(config)


def test_a_sequence_takes_little_more_than_its_state(decoder: object) -> None:
    slot = StateCache.slot_bytes(decoder.state_shapes, torch.bfloat16)  # type: ignore[attr-defined]
    assert NECESSARY <= slot <= 1.2 * NECESSARY
    assert KVCache.page_bytes(decoder.kv_shapes, 16, torch.bfloat16) == 0  # type: ignore[attr-defined]
    cache = StateCache.allocate(decoder.state_shapes, 5, torch.bfloat16, "meta")  # type: ignore[attr-defined]
    assert sum(tensor.numel() * tensor.element_size() for tensor in cache.flat) == 5 * slot


@pytest.mark.parametrize("running", [1, 16, 256])
def test_checkpoints_stay_within_their_share(decoder: object, running: int) -> None:
    slot = StateCache.slot_bytes(decoder.state_shapes, torch.bfloat16)  # type: ignore[attr-defined]
    total = 2 << 30
    numbers = plan_slots(ModelConfig(model="m", max_num_seqs=running), slot, total, one_seq=0)
    assert numbers.num_seqs == min(running, int(total * (1 - CHECKPOINT_SHARE)) // slot)
    assert numbers.num_checkpoints > 0
    assert numbers.num_checkpoints * slot <= CHECKPOINT_SHARE * total
    assert numbers.total * slot <= total
    assert numbers.total * slot - numbers.num_checkpoints * slot <= 1.2 * NECESSARY * numbers.num_seqs
