"""How memory is divided between pages and state, and what the description, statistics and metrics say of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_rig import greedy
from hybrid_rig import STATE, hybrid_engine

from quire.engine.memory.state_budget import plan_host_memory, plan_slots
from quire.errors import ConfigError
from quire.server.metrics.engine_metrics import EngineMetrics
from quire.settings.model_config import ModelConfig
from quire_models import StateCache

SLOT = StateCache.slot_bytes([STATE.state_shape] * 2, torch.float32)
"""Bytes of the state of one sequence; the two kinds of model used here have two blocks with state."""
BYTES = {"num_pages": None}


def test_pages_and_slots_share_one_budget(tmp_path: Path) -> None:
    total = 400 * SLOT
    with hybrid_engine(tmp_path, kv_cache_memory_bytes=total, max_num_seqs=8, **BYTES) as rig:
        info, memory = rig.engine.info, rig.engine.memory
        assert info.num_state_slots - info.num_state_checkpoints == 8
        assert info.num_state_checkpoints == 64  # at most eight for each sequence
        assert memory.state == info.num_state_slots * SLOT == info.state_bytes
        assert total - 4 * 4096 < memory.state + memory.kv_cache <= total
        assert any("8 sequences and 64 checkpoints" in line for line in info.description)


def test_fewer_sequences_run_if_their_state_does_not_fit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with hybrid_engine(tmp_path, kv_cache_memory_bytes=60 * SLOT, max_num_seqs=100, max_model_len=40, **BYTES) as rig:
        info = rig.engine.info
        assert info.num_state_slots - info.num_state_checkpoints == 30
        assert "at most 30 sequences run at once, not --max-num-seqs 100" in caplog.text
        assert len(rig.tokens([[1, 2, 3]] * 40, greedy(4, ignore_eos=True))) == 40


def test_a_state_that_does_not_fit_is_refused() -> None:
    many = ModelConfig(model="m", num_state_checkpoints=60)
    with pytest.raises(ConfigError, match="and --num-state-checkpoints 60 must fit: raise"):
        plan_slots(many, SLOT, total=50 * SLOT, one_seq=SLOT)
    with pytest.raises(ConfigError, match=r"The state of one sequence takes .* but one sequence must fit"):
        plan_slots(ModelConfig(model="m"), SLOT, total=SLOT - 1, one_seq=0)
    with pytest.raises(ConfigError, match=r"is less than one page .* and the state of a sequence"):
        plan_host_memory(replace(many, swap_space=SLOT / 2**30), 100, SLOT, 10, 10)
    assert plan_host_memory(replace(many, swap_space=40 * SLOT / 2**30), 0, SLOT, 99, 10) == (99, 10)


def test_a_model_with_state_only_takes_no_memory_for_pages(tmp_path: Path) -> None:
    with hybrid_engine(tmp_path, "state only", kv_cache_memory_bytes=40 * SLOT, max_num_seqs=4, **BYTES) as rig:
        info = rig.engine.info
        assert rig.engine.memory.kv_cache == 0
        assert info.num_pages >= 4 * info.max_model_len // info.page_size
        assert (info.num_state_slots - info.num_state_checkpoints) * SLOT == 4 * SLOT
        assert info.num_state_checkpoints == 10  # a quarter of the budget
        prompt = list(range(30))
        for _ in range(2):
            rig.tokens([prompt], greedy(4, ignore_eos=True))
        metrics = EngineMetrics("quire:", [info])
        metrics.latest[info.name] = rig.engine.stats()
        found = {s.name: s.value for family in metrics.collect() for s in family.samples}
        assert found["quire:state_slots"] == 14
        assert found["quire:state_slots_used"] == 0
        assert found["quire:state_checkpoints"] == found["quire:state_checkpoints_taken_total"] == 1
        assert found["quire:state_checkpoint_hits_total"] == 1
