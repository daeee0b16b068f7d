"""Options of attention that only some models use: every implementation gives what the reference gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention_options import TOLERANCE, check_options
from torch import Tensor

from quire_kernels import quantized_pages, reference, select
from quire_kernels.cpu import build, isa
from quire_kernels.pytorch import ops as torch_ops
from quire_testing.ops.attention_cases import rows_of
from quire_testing.ops.cases import RandomInputs

needs_cpp = pytest.mark.skipif(
    not (isa.available() and build.compiler()), reason="there is no compiler, or no instruction set for the C++ ops"
)


def implementation(name: str) -> Any:
    if name == "torch":
        return torch_ops
    from quire_kernels.cpu.implementations import shared_ops

    return shared_ops()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", ["torch", pytest.param("cpp", marks=needs_cpp)])
def test_options_and_widths_of_values(name: str, dtype: torch.dtype) -> None:
    check_options(implementation(name), dtype)


def test_a_large_sink_takes_all_weight_and_a_small_one_none() -> None:
    draw = RandomInputs(torch.float32, torch.device("cpu"), torch.Generator().manual_seed(2))
    rows, pages = rows_of(draw, (3,), (20,))
    pools = draw(pages, 16, 2, 16), draw(pages, 16, 2, 16)
    q = draw(3, 2, 16)
    plain = reference.paged_attention(q, *pools, rows, 0.25)
    sinks = torch.tensor([1e4, -1e4])
    found = reference.paged_attention(q, *pools, rows, 0.25, sinks=sinks)
    assert not found[:, 0].any()
    assert torch.allclose(found[:, 1], plain[:, 1])


# --- reading pages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["auto", "int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["torch", pytest.param("cpp", marks=needs_cpp)])
def test_pages_are_read_as_they_were_written(name: str, dtype: torch.dtype, kind: str) -> None:
    stored = quantized_pages.STORAGE.get(kind, dtype)
    ops: Any = implementation(name) if name == "cpp" else quantized_pages if kind != "auto" else reference
    draw = RandomInputs(dtype, torch.device("cpu"), torch.Generator().manual_seed(3))
    dim = 64
    k, v = draw(40, 3, dim), draw(40, 3, dim)
    width = quantized_pages.stored_elements(dim, stored)
    pools = [torch.zeros(4, 16, 3, width, dtype=stored) for _ in range(2)]
    slots = torch.randperm(64, generator=draw.generator)[:40]
    ops.write_kv(k, v, *pools, slots)
    for found, given in zip(ops.read_kv(*pools, slots, dtype), (k, v), strict=True):
        wanted = given if kind == "auto" else quantized_pages.decode(quantized_pages.encode(given, stored), dtype)
        assert found.dtype == dtype
        assert torch.allclose(found.float(), wanted.float(), atol=2e-2 if dtype == torch.bfloat16 else 1e-5)
        assert kind != "auto" or torch.equal(found, given)


def test_models_of_any_kind_of_attention_have_implementations() -> None:
    from quire.records import OpQuery

    for kind in ("auto", "int8"):
        query = OpQuery("cpu", "float32", kv_dtype=kind, attention_options=frozenset({"value_dim", "sinks"}))
        chosen = {choice.op: choice.name for choice in select.choose(query).report}
        assert len({chosen[op].split("-")[0] for op in ("paged_attention", "write_kv", "read_kv")}) == 1


# --- a matrix for each head -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", ["torch", pytest.param("cpp", marks=needs_cpp)])
def test_each_head_has_its_own_matrix(name: str, dtype: torch.dtype) -> None:
    bind: Callable[[Tensor], Callable[[Tensor], Tensor]] = implementation(name).linear_heads
    for tokens, heads, outputs, inputs in ((1, 3, 40, 16), (7, 4, 128, 64), (5, 2, 33, 48)):
        weight = torch.randn(heads, outputs, inputs, dtype=dtype) * inputs**-0.5
        wide = torch.randn(tokens, 2 * heads, inputs, dtype=dtype)
        for x in (wide[:, :heads], wide[:, heads:], wide[:, ::2]):
            found, wanted = bind(weight)(x), reference.linear_heads(weight)(x)
            assert torch.allclose(found.float(), wanted.float(), atol=1e-2 if dtype == torch.bfloat16 else 1e-5)
