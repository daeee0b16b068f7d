"""Plans of FlashInfer: they have its own parameters, and by its documentation mean what the reference computes.

Its kernels run on GPUs only, where `tests/gpu` compares their results.
"""

from __future__ import annotations

import inspect
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch
from documented_attention import attend_rows
from drawn_steps import DrawnStep, steps
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import Tensor

from quire_kernels import reference

pytest.importorskip("flashinfer", reason="flashinfer-python is not installed")


class _Event:
    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


class _Wrapper:
    """Stands for a wrapper of FlashInfer: binds arguments to the parameters that it has, and reads its metadata."""

    real: Any

    def __init__(self, workspace: Tensor, layout: str, **options: Any) -> None:
        inspect.signature(self.real).bind(workspace, layout, **options)
        assert layout == "NHD"

    def plan(self, *args: Any, **kwargs: Any) -> None:
        plan = getattr(self.real, "_plan_impl", self.real.plan)
        self.planned = inspect.signature(plan).bind(self, *args, **kwargs)
        self.planned.apply_defaults()

    def run(self, q: Tensor, pools: tuple[Tensor, Tensor]) -> Tensor:
        from flashinfer.page import get_seq_lens

        given = self.planned.arguments
        names = ("paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
        names = names if names[0] in given else ("indptr", "indices", "last_page_len")
        indptr, indices, last = (given[name] for name in names)
        assert (q.dtype, pools[0].dtype) == (given["q_data_type"], given["kv_data_type"])
        assert tuple(q.shape[1:]) == (given["num_qo_heads"], given.get("head_dim_qk", given.get("head_dim")))
        assert tuple(pools[0].shape[1:3]) == (given["page_size"], given["num_kv_heads"])
        assert given.get("causal", True)
        lens = get_seq_lens(indptr, last, given["page_size"]).tolist()
        rows = [indices[begin:end].long() for begin, end in pairwise(indptr.tolist())]
        keys, values = (
            [pool[pages].flatten(0, 1)[:count] for pages, count in zip(rows, lens, strict=True)] for pool in pools
        )
        starts = given["qo_indptr"].tolist() if "qo_indptr" in given else list(range(len(q) + 1))
        cap = given["logits_soft_cap"] or 0.0
        return attend_rows(q, keys, values, starts, given["sm_scale"], given["window_left"], cap)


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    import flashinfer

    for name in ("BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"):
        monkeypatch.setattr(flashinfer, name, type(name, (_Wrapper,), {"real": getattr(flashinfer, name)}))
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    return flashinfer


@given(step=steps(), single=st.booleans(), softcap=st.sampled_from([None, 5.0]))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_plans_mean_what_the_reference_computes(
    flashinfer: ModuleType, step: DrawnStep, single: bool, softcap: float | None
) -> None:
    from quire_plugins.attention.flashinfer.attention import FlashInferAttention

    rows = step.singles().rows if single else step.rows
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(int(rows.lens_host.sum()), 4, 64, generator=generator)
    pools = torch.randn(2, step.pages, step.page_size, 2, 64, generator=generator)
    given = (q, *pools, rows, 0.1, step.window, softcap)
    attention = FlashInferAttention()
    wanted = reference.paged_attention(*given)
    for _ in range(2):  # the second block of a step uses the first one's plan
        torch.testing.assert_close(attention(*given), wanted, rtol=1e-4, atol=1e-5)
