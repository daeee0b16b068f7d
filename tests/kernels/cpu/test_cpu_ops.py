"""The C++ ops against the reference, for every instruction set that this machine has.

What holds to the last bit is tested as such: a row's product, norm, activation or attention does not depend on what
else is in the step, nor on the number of threads.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_rig import STEPS, Attention, rows_of
from cpu_rig import FLOATS, close, factors
from quantized_rig import random_matrix
from torch import Tensor

from quire.records import OpImpl
from quire_kernels import ops, reference
from quire_kernels.cpu import implementations
from quire_kernels.cpu.ops import CpuOps
from quire_testing import check_op

pytestmark = pytest.mark.usefixtures("seeded")


# --- conformance, as for anybody's implementation --------------------------------------------------------


def impls(cpp: CpuOps) -> dict[str, OpImpl]:
    names = [op for op in implementations.OPS if op != "linear_int8"]
    return {op: OpImpl("mine", op, lambda _: None, lambda op=op: getattr(cpp, op), 0, "grouped") for op in names}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("op", [op for op in implementations.OPS if op != "linear_int8"])
def test_every_op_conforms(cpp: CpuOps, op: str, dtype: str) -> None:
    mine = impls(cpp)
    check_op(mine[op], dtype, page_size=48 if op == "write_kv" else 16, stores=mine["write_kv"])


def test_what_has_pages_of_its_own_needs_what_stores_them(cpp: CpuOps) -> None:
    mine = impls(cpp)
    for wrong in (None, mine["act"], OpImpl("other", "write_kv", lambda _: None, lambda: reference.write_kv)):
        with pytest.raises(AssertionError, match=r"pages that are grouped: `stores` must be the write_kv of these"):
            check_op(mine["paged_attention"], stores=wrong)


def test_attention_that_reads_pages_in_another_way_than_they_are_stored_is_noticed(cpp: CpuOps) -> None:
    stores = OpImpl("plain", "write_kv", lambda _: None, lambda: reference.write_kv, 0, "grouped")
    with pytest.raises(AssertionError, match="paged_attention, case"):
        check_op(impls(cpp)["paged_attention"], stores=stores)


# --- what happens to each token alone --------------------------------------------------------------------

SHAPES = [(1, 8), (7, 33), (70, 100), (3, 1), (5, 3, 24), (2, 5000)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_norms_are_the_reference(cpp: CpuOps, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, width = (torch.randn(shape) + 1).to(dtype), shape[-1]
    before = x.clone()
    for weight in (torch.randn(width), torch.randn(width).bfloat16(), torch.randn(width, 2)[:, 0].to(dtype)):
        close(cpp.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    bias = torch.randn(width).to(dtype)
    for w, b in ((weight, bias), (weight, None), (None, bias), (None, None)):
        close(cpp.layer_norm(x, w, b, 1e-5), reference.layer_norm(x, w, b, 1e-5))
    assert torch.equal(x, before), "the input of a norm is still needed"


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 8), (7, 33), (70, 100)], ids=str)
def test_adding_and_normalising_is_the_reference(cpp: CpuOps, shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, residual, weight = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype), torch.randn(shape[1])
    want = reference.add_rms_norm(x, residual, weight, 1e-5)
    for got, expected in zip(cpp.add_rms_norm(x.clone(), residual.clone(), weight, 1e-5), want, strict=True):
        close(got, expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("act", ops.ACTS)
def test_activations_are_the_reference(cpp: CpuOps, act: str, dtype: torch.dtype) -> None:
    edges = torch.tensor([0.0, -0.0, 1e-8, -1e-8, 0.06, 0.0625, 0.07, 20.0, -20.0, 88.0, -88.0, 3e4, -3e4])
    x = torch.cat((torch.linspace(-12, 12, 201), edges, -edges)).to(dtype).repeat(3, 1)
    close(cpp.act(x.clone(), act), reference.act(x, act))
    gate_up = torch.cat((x, torch.randn(x.shape).to(dtype)), -1)
    close(cpp.gated_act(gate_up, act), reference.gated_act(gate_up, act))
    close(cpp.gated_act(gate_up[:, None], act), reference.gated_act(gate_up, act)[:, None])


@pytest.mark.parametrize("act", ops.ACTS)
def test_what_is_no_number_stays_none(cpp: CpuOps, act: str) -> None:
    for dtype in FLOATS:
        x = torch.tensor([[1.0, torch.nan, 2.0]], dtype=dtype)
        assert cpp.act(x, act).isnan().tolist() == reference.act(x, act).isnan().tolist()


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_token_is_the_same_alone_and_among_others_and_wherever_it_lies(cpp: CpuOps, dtype: torch.dtype) -> None:
    wide = torch.randn(70, 150).to(dtype)
    x, weight = wide[:, 17:117], torch.randn(100).to(dtype)
    for name, arguments in (
        ("rms_norm", (weight, 1e-6)),
        ("layer_norm", (weight, weight, 1e-6)),
        ("act", ("gelu_tanh",)),
        ("gated_act", ("silu",)),
    ):
        function = getattr(cpp, name)
        together = function(x, *arguments)
        for row in (0, 1, 39, 40, 41, 69):
            assert torch.equal(function(x[row : row + 1].clone(), *arguments)[0], together[row]), (name, row)


@pytest.mark.parametrize("dtype", FLOATS)
def test_steps_without_tokens_are_no_work(cpp: CpuOps, dtype: torch.dtype) -> None:
    x, weight, heads = torch.empty(0, 32, dtype=dtype), torch.randn(32).to(dtype), torch.empty(0, 2, 16, dtype=dtype)
    assert cpp.linear(torch.randn(8, 32).to(dtype), None)(x).shape == (0, 8)
    assert cpp.linear(torch.randn(8, 40).to(dtype), None)(torch.empty(2, 0, 40, dtype=dtype), True).shape == (2, 0, 8)
    assert cpp.rms_norm(x, weight, 1e-5).shape == cpp.layer_norm(x, weight, None, 1e-5).shape == (0, 32)
    assert [y.shape for y in cpp.add_rms_norm(x, x, weight, 1e-5)] == [(0, 32)] * 2
    assert cpp.act(x, "relu").shape == (0, 32)
    assert cpp.gated_act(x, "silu").shape == (0, 16)
    k_pool, v_pool = torch.ones(2, 1, 16, 2, 16, dtype=dtype)
    slot_mapping, angles = torch.empty(0, dtype=torch.int64), torch.empty(0, 8)
    cpp.write_kv(heads, heads, k_pool, v_pool, slot_mapping)
    assert cpp.rotary_write_kv(heads, heads, heads, angles, angles, k_pool, v_pool, slot_mapping).shape == heads.shape
    assert (k_pool == 1).all()
    assert (v_pool == 1).all()
    assert cpp.paged_attention(heads, k_pool, v_pool, rows_of([], [], 16)[0], 0.3).shape == heads.shape


# --- threads ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_number_of_threads_changes_nothing(cpp: CpuOps, threads: Any, dtype: torch.dtype) -> None:
    given, codes = factors(100, 70, dtype), random_matrix((100, 70, 70), 4, offsets=True)
    cases = [Attention(lens, contexts, 8, 2, 32, dtype) for lens, contexts in STEPS]

    def everything() -> list[Tensor]:
        products = [cpp.linear(given.weight, given.bias, gated=True), cpp.linear_int8(given.weight, given.bias)]
        products += [cpp.linear_quantized(codes, given.bias, dtype, False, bits) for bits in (8, 16)]
        found = [product(given.x[:rows]) for rows in (1, 13, 70) for product in products]
        found += [product.unpacked() for product in products]
        found += [cpp.rms_norm(given.x, torch.ones(70, dtype=dtype), 1e-5), cpp.gated_act(given.x, "silu")]
        return found + [case.by(cpp) for case in cases]

    threads(1)
    want = everything()
    for count in (2, 4, 3):
        threads(count)
        for got, expected_one in zip(everything(), want, strict=True):
            assert torch.equal(got, expected_one)
