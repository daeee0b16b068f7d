"""The Triton kernels compiled for GPUs that are not here."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interpreted import TritonOps, needs_triton, triton_ops

from quire_kernels.ops import AttentionMetadata

pytestmark = needs_triton


@pytest.fixture(scope="module")
def triton() -> Iterator[TritonOps]:
    yield from triton_ops(interpreted=False)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def launches(triton: TritonOps, lens: list[int], contexts: list[int]) -> list[Any]:
    """Those of a block of an 8B model on an H100."""
    offline: Any = importlib.import_module("quire_kernels.triton_gpu.report.offline")
    host = np.array(lens, np.int32), np.array(contexts, np.int32)
    tables = (meta(*shape, dtype=torch.int32) for shape in ((len(lens) + 1,), (len(lens),), (len(lens), 512)))
    rows = AttentionMetadata(*tables, *host, max(lens), max(contexts))
    tokens, pools = sum(lens), (meta(64, 16, 8, 128), meta(64, 16, 8, 128))
    angles = meta(tokens, 64, dtype=torch.float32), meta(tokens, 64, dtype=torch.float32)
    q, k, v = meta(tokens, 6144).split([4096, 1024, 1024], -1)
    q, k, v = (part.unflatten(-1, (-1, 128)) for part in (q, k, v))
    with offline.offline(offline.ARCHITECTURES[1]) as driver:
        q = triton.rotary_write_kv(q, k, v, *angles, *pools, meta(tokens, dtype=torch.int64))
        triton.paged_attention(q, *pools, rows, 0.1)
    return driver.launches


def test_a_decode_step_takes_two_small_launches_without_spills(triton: TritonOps) -> None:
    found = launches(triton, [1] * 4, [8192] * 4)
    assert [(launch.kernel, launch.grid) for launch in found] == [
        ("_rotate_and_store", (4, 10, 1)),
        ("attend", (8, 4, 32)),
    ]
    assert not any(launch.usage.spilled for launch in found)
    assert all(launch.usage.shared_memory <= 110 << 10 for launch in found), "two programs on a multiprocessor"


def test_a_prefill_multiplies_with_the_instructions_of_the_architecture(triton: TritonOps) -> None:
    *_, attend = launches(triton, [500], [2000])
    assert attend.grid == (8, 16, 1)
    assert not attend.usage.spilled
    assert "HGMMA" in attend.instructions()
