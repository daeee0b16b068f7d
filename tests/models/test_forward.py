"""The pool of pages and the buffers of a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quire_models.step.forward_batch import ForwardBuffers, KVCache, KvShape


def test_pages_are_copied_all_sources_before_any_destination() -> None:
    pool = KVCache.allocate([KvShape(1, 2)], num_pages=4, page_size=1, dtype=torch.float32, device="cpu")
    pool.k[0].view(4, 2)[:] = torch.arange(4.0)[:, None]
    pool.copy([(0, 1), (1, 2)])
    assert pool.k[0][:, 0, 0, 0].tolist() == [0.0, 0.0, 1.0, 3.0]
    pool.copy([])


def test_pages_move_between_pools_and_back() -> None:
    shapes = [KvShape(1, 2), KvShape(2, 3)]
    device = KVCache.allocate(shapes, 4, 2, torch.float32, "cpu")
    host = KVCache.allocate(shapes, 3, 2, torch.float32, "cpu")
    for tensor in device.k + device.v:
        tensor.normal_()
    before = [tensor[3].clone() for tensor in device.k + device.v]
    KVCache.swap(device, host, [(3, 0)])
    for tensor in device.k + device.v:
        tensor.zero_()
    KVCache.swap(host, device, [(0, 1)])
    for tensor, page in zip(device.k + device.v, before, strict=True):
        assert torch.equal(tensor[1], page)


def test_bytes_of_a_page_are_those_it_takes() -> None:
    shapes = [KvShape(1, 2), KvShape(2, 3)]
    pool = KVCache.allocate(shapes, 5, 4, torch.bfloat16, "cpu")
    taken = sum(tensor.nbytes for tensor in pool.k + pool.v)
    assert KVCache.page_bytes(shapes, 4, torch.bfloat16) * 5 == taken
    assert pool.num_pages == 5


def fill(buffers: ForwardBuffers, kv: KVCache, lens: list[int], contexts: list[int], **extra: Any) -> Any:
    positions = np.concatenate([np.arange(c - n, c) for n, c in zip(lens, contexts, strict=True)])
    return buffers.fill(
        token_ids=np.arange(len(positions)),
        positions=positions,
        slot_mapping=positions,
        query_starts=np.cumsum([0, *lens], dtype=np.int32),
        contexts=np.array(contexts, dtype=np.int32),
        page_table=np.zeros((len(lens), 2), dtype=np.int32),
        logit_rows=np.array([0]),
        kv=kv,
        **extra,
    )


def test_buffers_stay_where_they_are_and_say_what_a_step_holds() -> None:
    kv = KVCache.allocate([KvShape(1, 2)], 4, 4, torch.float32, "cpu")
    buffers = ForwardBuffers(max_tokens=8, max_rows=3, max_pages=2, device="cpu")
    first = fill(buffers, kv, [3, 1], [3, 7])
    assert (first.max_query, first.max_context) == (3, 7)
    assert first.positions.tolist() == [0, 1, 2, 6]
    assert first.lengths.tolist() == [1, 2, 3, 7]
    assert first.query_starts.tolist() == [0, 3, 4]
    assert (first.pages.shape, first.pages.dtype) == ((2, 2), torch.int32)
    second = fill(buffers, kv, [1], [5], prompt_lens=np.array([6], dtype=np.int32))
    assert second.tokens.data_ptr() == first.tokens.data_ptr()
    assert second.pages.data_ptr() == first.pages.data_ptr()
    assert second.lengths.tolist() == [6]
    assert second.step_cache == {}


def test_a_step_larger_than_the_buffers_is_a_bug_and_said_to_be() -> None:
    kv = KVCache.allocate([KvShape(1, 2)], 4, 4, torch.float32, "cpu")
    with pytest.raises(AssertionError, match="9 values do not fit a buffer of 8"):
        fill(ForwardBuffers(8, 3, 2, "cpu"), kv, [9], [9])


def test_values_of_another_width_and_blocks_without_values() -> None:
    shapes = [KvShape(2, 4, 6), KvShape(1, 8, 0), KvShape(0, 0)]
    assert [shape.value_width for shape in (*shapes, KvShape(2, 3))] == [6, 0, 0, 3]
    kv = KVCache.allocate(shapes, 3, 4, torch.float32, "cpu")
    assert [list(pool.shape) for pool in kv.k] == [[3, 4, 2, 4], [3, 4, 1, 8], [3, 4, 0, 0]]
    assert [list(pool.shape) for pool in kv.v] == [[3, 4, 2, 6], [3, 4, 1, 0], [3, 4, 0, 0]]
    assert KVCache.page_bytes(shapes, 4, torch.float32) == 4 * 4 * (2 * (4 + 6) + 8)
    assert KVCache.page_bytes([KvShape(1, 8, 0)], 4, torch.int8) == 4 * (8 + 4)
    for pool in kv.k + kv.v:
        pool[0] = 1.0
    kv.prefault(lambda: True)
    kv.copy([(0, 2)])
    assert kv.num_pages == 3
    assert all(pool[2].eq(1).all() and not pool[1].any() for pool in kv.k + kv.v)
