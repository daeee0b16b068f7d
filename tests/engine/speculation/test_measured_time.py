"""The time that a drafter takes to read hidden states is part of what its drafts cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from engine_rig import greedy, rig_of
from speculation_rig import ReplayDrafter, with_drafter

from quire.engine.speculation import speculation
from quire.hooks import registry
from quire.records import ReadsHidden
from quire.types import HiddenStates
from quire_testing.tiny import tiny_llama


class Clock:
    """Seconds that pass only where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Reader(ReplayDrafter):
    """Takes a second for drafts and three to read hidden states."""

    reads_hidden = ReadsHidden()

    def __init__(self, clock: Clock) -> None:
        super().__init__({}, 0.0)
        self.clock = clock

    def propose(self, queries: Sequence[Any]) -> Any:
        self.clock.now += 1
        return super().propose(queries)

    def observe(self, states: Sequence[HiddenStates]) -> None:
        self.clock.now += 3


def test_reading_hidden_states_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, measured = Clock(), list[float]()
    monkeypatch.setattr(speculation, "perf_counter", clock)
    config = {"method": "replay", "adaptive": False}
    found = with_drafter(registry.load(None), Reader(clock))
    with rig_of(tiny_llama(tmp_path / "tiny"), found, speculative_config=config) as rig:
        lengths = rig.engine._speculation._lengths
        monkeypatch.setattr(lengths, "observe", lambda plan, result, draft_s, step_s: measured.append(draft_s))
        rig.tokens([[5, 6, 7]], greedy(4, ignore_eos=True))
    assert measured[:4] == [3, 4, 4, 3]  # nothing is drafted before the first token and before the last
