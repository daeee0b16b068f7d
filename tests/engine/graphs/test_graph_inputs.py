"""Buckets of captured steps, and the memory that these read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import given, strategies as st

from quire_models.graphs.buckets import MAX_ROWS, bucket_of, buckets
from quire_models.graphs.inputs import GraphInputs


@given(st.integers(1, 700), st.integers(1, 700))
def test_every_step_has_the_smallest_bucket_that_holds_it(max_rows: int, rows: int) -> None:
    every = buckets(max_rows)
    assert list(every) == sorted(set(every))
    assert every[-1] == min(max_rows, MAX_ROWS)
    found = bucket_of(rows, every)
    assert found == min((size for size in every if size >= rows), default=None)
    assert found is None or found - rows < max(8, rows)
    assert bucket_of(0, every) is None


@dataclass
class _Step:
    tokens: Any
    positions: Any
    slot_mapping: Any
    contexts: Any
    pages: Any
    prompt_lens: Any
    rope_positions: Any = None
    token_types: Any = None
    ends: Any = None
    sources: Any = None
    state_slots: Any = None


@given(st.data(), st.integers(1, 20), st.integers(1, 9), st.sampled_from((1, 3)))
def test_a_step_arrives_whole_and_is_filled_up(data: st.DataObject, most: int, max_pages: int, axes: int) -> None:
    inputs = GraphInputs(most, max_pages, torch.device("cpu"), axes)
    for _ in range(3):
        bucket = data.draw(st.sampled_from(buckets(most)))
        rows, width = data.draw(st.integers(1, bucket)), data.draw(st.integers(1, max_pages))
        draw = np.random.default_rng(data.draw(st.integers(0, 99)))
        step = _Step(
            *(draw.integers(0, 999, rows) for _ in range(4)), draw.integers(0, 99, (rows, width), np.int32), None
        )
        step.prompt_lens = draw.integers(0, 999, rows, np.int32)
        step.state_slots = draw.permutation(rows)
        inputs.fill(bucket, step)
        found = inputs.on_device(bucket)
        for array, wanted in zip(
            (found.tokens, found.positions, found.slots, found.contexts),
            (step.tokens, step.positions, step.slot_mapping, step.contexts),
            strict=True,
        ):
            assert array[:rows].tolist() == wanted.tolist()
        assert found.lengths[:rows].tolist() == np.maximum(step.prompt_lens, step.positions + 1).tolist()
        assert set(found.contexts[rows:].tolist()) <= {0}
        assert found.state_slots[:rows].tolist() == step.state_slots.tolist()
        assert {*found.slots[rows:].tolist(), *found.state_slots[rows:].tolist()} <= {-1}
        assert found.rope.shape == (axes, bucket)
        if axes > 1:
            assert (found.rope[:, :rows].numpy() == step.positions).all()
        table = inputs.page_table(bucket)
        assert table.shape == (bucket, max_pages)
        assert (table[:rows, :width].numpy() == step.pages).all()
        assert all(tensor.data_ptr() % 4 == 0 for tensor in (found.contexts, found.pages))
