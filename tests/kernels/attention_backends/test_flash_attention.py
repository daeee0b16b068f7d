"""Arguments of FlashAttention: by the documentation of its functions, they mean what the reference computes.

The package's functions run as they are; what they call, compiled for GPUs, is the documented result in torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from documented_attention import attend_rows
from drawn_steps import DrawnStep, steps
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import Tensor

from quire_kernels import reference

if find_spec("flash_attn") is None:
    pytest.skip("flash-attn is not installed", allow_module_level=True)


def _rows(pool: Tensor, table: Tensor, contexts: list[int]) -> list[Tensor]:
    return [pool[pages.long()].flatten(0, 1)[:count] for pages, count in zip(table, contexts, strict=True)]


def varlen_fwd(q: Tensor, k: Tensor, v: Tensor, out: Any, starts: Tensor, ends: Tensor, *args: Any) -> Any:
    _, _, table, slopes, most_tokens, most_keys, _, scale, _, causal, left, right, softcap, *_ = args
    assert causal
    assert right in (-1, 0)
    contexts = ends.diff().tolist()
    assert (starts.diff().max(), max(contexts)) == (most_tokens, most_keys)
    keys, values = _rows(k, table, contexts), _rows(v, table, contexts)
    return attend_rows(q, keys, values, starts.tolist(), scale, left, softcap, slopes), None, None, None


def fwd_kvcache(q: Tensor, k: Tensor, v: Tensor, *args: Any) -> Any:
    _, _, contexts, _, _, _, _, table, slopes, _, scale, causal, left, right, softcap, *_ = args
    assert causal
    assert right in (-1, 0)
    keys, values = _rows(k, table, contexts.tolist()), _rows(v, table, contexts.tolist())
    starts = list(range(len(q) + 1))
    return attend_rows(q[:, 0], keys, values, starts, scale, left, softcap, slopes)[:, None], None


@pytest.fixture(scope="module")
def flash_attn() -> Iterator[ModuleType]:
    compiled = SimpleNamespace(varlen_fwd=varlen_fwd, fwd_kvcache=fwd_kvcache)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "flash_attn_2_cuda", compiled)
        import flash_attn
        from flash_attn import flash_attn_interface as interface

        whole = interface._flash_attn_varlen_forward  # registered for tensors on a GPU only
        patch.setattr(interface, "_wrapped_flash_attn_varlen_forward", whole._init_fn)
        yield flash_attn


@given(
    step=steps(),
    single=st.booleans(),
    softcap=st.sampled_from([None, 5.0]),
    slopes=st.sampled_from([None, torch.tensor([0.1, 0.3, 0.0, 2.0])]),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_calls_mean_what_the_reference_computes(
    flash_attn: ModuleType, step: DrawnStep, single: bool, softcap: float | None, slopes: Tensor | None
) -> None:
    from quire_plugins.attention.flash_attention.attention import paged_attention

    rows = step.singles().rows if single else step.rows
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(int(rows.lens_host.sum()), 4, 16, generator=generator)
    pools = torch.randn(2, step.pages, step.page_size, 2, 16, generator=generator)
    given = (q, *pools, rows, 0.1, step.window, softcap)
    with torch.no_grad():
        found = paged_attention(*given, slopes=slopes)
    torch.testing.assert_close(found, reference.paged_attention(*given, slopes=slopes), rtol=1e-4, atol=1e-5)
