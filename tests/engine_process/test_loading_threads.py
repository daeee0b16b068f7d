"""A load uses all of torch's threads while no model computes, and leaves those of other threads as they are."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from quire.engine_process.pacing.loading_threads import (
    LEAST_PAUSE_S,
    PAUSE_BESIDE_LOADS,
    LoadingThreads,
    LoadPauses,
)


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_a_load_has_all_threads_only_while_no_model_computes() -> None:
    one, other = SimpleNamespace(has_work=False), SimpleNamespace(has_work=False)
    threads = LoadingThreads({"one": one, "other": other})

    def adapted() -> int:
        threads.adapt()
        return torch.get_num_threads()

    with ThreadPoolExecutor(1, initializer=threads.begin) as pool:
        assert pool.submit(torch.get_num_threads).result() == 2
        assert pool.submit(adapted).result() == 4
        other.has_work = True
        assert pool.submit(adapted).result() == 2
        other.has_work = False
        assert pool.submit(adapted).result() == 4
        other.has_work = True
        pool.submit(adapted).result()
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == 4
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize(("step_s", "num_busy"), [(0.0001, 1), (0.004, 1), (0.3, 1), (0.004, 3)])
def test_pauses_are_a_share_of_the_time_of_steps_and_none_is_short(step_s: float, num_busy: int) -> None:
    pauses = LoadPauses()
    found = [pauses.after(step_s, num_busy) for _ in range(3000)]
    assert all(pause_s == 0 or pause_s >= LEAST_PAUSE_S for pause_s in found)
    assert sum(found) == pytest.approx(3000 * step_s * PAUSE_BESIDE_LOADS / num_busy, abs=2 * LEAST_PAUSE_S)
