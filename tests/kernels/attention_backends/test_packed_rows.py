"""Keys that are gathered for attention without pages."""

from __future__ import annotations

import pytest
import torch
from drawn_steps import DrawnStep, steps
from hypothesis import given, settings

from quire_plugins.attention import packed_rows as module
from quire_plugins.attention.packed_rows import packed_rows


@given(steps())
@settings(max_examples=40, deadline=None)
def test_every_key_that_a_token_attends_to_is_gathered_in_the_order_of_positions(step: DrawnStep) -> None:
    rows, visible = step.rows, step.visible()
    pool = torch.arange(step.pages * step.page_size).view(step.pages, step.page_size, 1, 1)
    [packed] = packed_rows(rows, step.page_size, step.window)
    assert (packed.first, packed.end, packed.start) == (0, len(rows.lens_host), 0)
    keys, tokens = packed.of(pool)[:, 0, 0].split(packed.key_lens), visible.split(packed.lens)
    positions = packed.positions.split(packed.key_lens)
    for row, (slots, places, seen) in enumerate(zip(keys, positions, tokens, strict=True)):
        assert set(slots.tolist()) >= set(seen.any(0).nonzero()[:, 0].tolist())
        assert seen[0, slots[0]], "the first key is one that the first token attends to"
        assert places.tolist() == list(range(rows.contexts_host[row] - len(slots), rows.contexts_host[row]))
        pages = rows.pages[row, places // step.page_size]
        assert torch.equal(slots, pages.long() * step.page_size + places % step.page_size)


@given(steps())
@settings(max_examples=20, deadline=None)
def test_calls_of_few_keys_cover_all_rows(step: DrawnStep) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_KEYS", 30)
        calls = packed_rows(step.rows, step.page_size, step.window)
    assert [row for call in calls for row in range(call.first, call.end)] == list(range(len(step.rows.lens_host)))
    assert [length for call in calls for length in call.lens] == step.rows.lens_host.tolist()
    assert all(sum(call.key_lens) <= 30 or call.end - call.first == 1 for call in calls)
    assert [call.tokens.start for call in calls[1:]] == [call.tokens.stop for call in calls[:-1]]
