"""Arguments of xformers: its masks are those of the reference, and its dispatch accepts our tensors.

Its kernels run on GPUs only, where `tests/gpu` compares their results.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from drawn_steps import DrawnStep, steps
from hypothesis import HealthCheck, given, settings
from torch._subclasses.fake_tensor import FakeTensorMode

from quire_plugins.attention.packed_rows import packed_rows
from quire_testing.ops.attention_cases import rows_of
from quire_testing.ops.cases import RandomInputs

pytest.importorskip("xformers", reason="xformers is not installed: pip install --no-deps xformers==0.0.35")
GIVEN = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def fmha() -> Iterator[ModuleType]:
    """xformers as on a GPU of compute capability 9.0, as far as it asks."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(torch.version, "cuda", "12.8")
        patch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
        patch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
        from xformers.ops import fmha

        patch.setattr(fmha.common, "_built_with_cuda", True)
        patch.setattr(fmha.attn_bias, "_to_device_tensor", _to_device_tensor)
        yield fmha


def _to_device_tensor(values: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Without pinned memory, which a build of torch without CUDA does not have."""
    return torch.tensor(values, dtype=dtype) if device.type == "cpu" else torch.empty(len(values), device=device)


@given(step=steps())
@GIVEN
def test_masks_of_gathered_keys_are_those_of_the_reference(fmha: ModuleType, step: DrawnStep) -> None:
    from quire_plugins.attention.xformers.biases import packed_bias

    [packed] = packed_rows(step.rows, step.page_size, step.window)
    bias = packed_bias(packed, step.window, torch.device("cpu"))
    seen = bias.materialize((sum(packed.lens), sum(packed.key_lens))) == 0
    found = torch.zeros(len(seen), step.pages * step.page_size, dtype=torch.bool)
    found[:, packed.slots] = seen
    assert torch.equal(found, step.visible())


@given(step=steps(page_sizes=(16, 32)))
@GIVEN
def test_masks_of_pages_are_those_of_the_reference(fmha: ModuleType, step: DrawnStep) -> None:
    from quire_plugins.attention.xformers.biases import paged_bias

    tokens, wanted = int(step.rows.lens_host.sum()), DrawnStep(step.rows, step.page_size, step.pages, None).visible()
    bias = paged_bias(step.rows, step.page_size)
    seen = bias.materialize((tokens, step.rows.pages.numel() * step.page_size)) == 0
    assert torch.equal(seen, wanted[:, : seen.shape[1]])
    assert not wanted[:, seen.shape[1] :].any()


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(8, 8, 64), (32, 8, 128), (28, 4, 128), (8, 1, 256), (6, 2, 96)]
)
def test_dispatch_accepts_gathered_keys(
    fmha: ModuleType, window: int | None, dtype: torch.dtype, heads: int, kv_heads: int, dim: int
) -> None:
    from quire_plugins.attention.xformers import attention, biases

    draw = RandomInputs(torch.float32, torch.device("cpu"), torch.Generator().manual_seed(0))
    rows, _ = rows_of(draw, (3, 4), (10, 20))
    [packed] = packed_rows(rows, 16, window)
    with FakeTensorMode(allow_non_fake_inputs=True):
        device = torch.device("cuda")
        q = torch.empty(7, heads, dim, device=device, dtype=dtype)
        k = torch.empty(sum(packed.key_lens), kv_heads, dim, device=device, dtype=dtype)
        inputs = fmha.Inputs(*attention.grouped(q, k, k), biases.packed_bias(packed, window, device), scale=0.1)
        inputs.validate_inputs()
        chosen = fmha.dispatch._dispatch_fw(inputs, False)
    assert chosen is (fmha.cutlass.FwOp if dtype == torch.float32 else fmha.flash.FwOp)


@pytest.mark.parametrize("page_size", [16, 32, 48, 64, 256])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(8, 8, 64), (32, 8, 128), (8, 1, 256)])
def test_the_kernel_of_single_tokens_accepts_pages(
    fmha: ModuleType, page_size: int, heads: int, kv_heads: int, dim: int
) -> None:
    from quire_plugins.attention.xformers import attention, biases

    draw = RandomInputs(torch.float32, torch.device("cpu"), torch.Generator().manual_seed(0), page_size)
    rows, pages = rows_of(draw, (1, 1, 1), (10, 200, 1))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        device = torch.device("cuda")
        rows.pages = mode.from_tensor(rows.pages).to(torch.int32)
        rows.pages = torch.empty(rows.pages.shape, dtype=torch.int32, device=device)
        q = torch.empty(3, heads, dim, device=device, dtype=torch.bfloat16)
        k = torch.empty(pages, page_size, kv_heads, dim, device=device, dtype=torch.bfloat16)
        kernel = attention.paged_kernel(q, k, rows)
        flat = k.flatten(0, 1)
        inputs = fmha.Inputs(*attention.grouped(q, flat, flat), biases.paged_bias(rows, page_size), scale=0.1)
        inputs.validate_inputs()
        assert kernel.not_supported_reasons(inputs) == []


def test_other_steps_have_no_kernel_that_reads_pages(fmha: ModuleType) -> None:
    from quire_plugins.attention.xformers.attention import paged_kernel

    draw = RandomInputs(torch.bfloat16, torch.device("cpu"), torch.Generator().manual_seed(0))
    single, longer = (rows_of(draw, lens, (9, 30))[0] for lens in ((1, 1), (1, 2)))
    q, pool = draw(2, 4, 64), draw(4, 16, 4, 64)
    assert paged_kernel(q, pool, single) is not None
    assert paged_kernel(q, pool, longer) is None
    assert paged_kernel(q.float(), pool.float(), single) is None
    assert paged_kernel(draw(2, 4, 96), draw(4, 16, 4, 96), single) is None
    assert paged_kernel(q, draw(4, 24, 4, 64), single) is None
