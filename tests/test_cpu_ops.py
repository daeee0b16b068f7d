"""The C++ ops against the reference, for every instruction set that this machine has.

What holds to the last bit is tested as such: a row's product, norm, activation or attention does not depend on what
else is in the step, nor on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quire.records import OpImpl
from quire.testing import check_op
from quire_kernels import ops, reference
from quire_kernels.cpu import build, implementations, isa
from quire_kernels.cpu.library import load
from quire_kernels.cpu.ops import CpuOps
from quire_kernels.ops import Rows

HERE = {found.name: found for found in isa.available()} if build.compiler() else {}
FLOATS = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.fixture(params=HERE)
def cpp(request: pytest.FixtureRequest) -> CpuOps:
    return CpuOps(load(HERE[request.param]))


@pytest.fixture(autouse=True)
def threads() -> Iterator[Any]:
    """Sets how many threads compute: two, unless the test says otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    yield torch.set_num_threads
    torch.set_num_threads(before)


def close(got: Tensor, want: Tensor) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    torch.testing.assert_close(got.float(), want.float(), atol=TOLERANCE[want.dtype], rtol=TOLERANCE[want.dtype])


# --- conformance, as for anybody's implementation ------------------------------------------------------


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


# --- products ------------------------------------------------------------------------------------------

MATRICES = [(96, 64), (100, 70), (33, 65), (1, 1), (31, 2), (70, 33), (48, 1536), (32, 32)]
"""(outputs, inputs): multiples of a panel's 32 and others; one that takes more than one block of x."""
COUNTS = (1, 2, 3, 5, 11, 12, 13, 16, 17, 31, 32, 33, 48, 64, 70)


@dataclass(frozen=True)
class Factors:
    weight: Tensor
    bias: Tensor
    x: Tensor
    exact: Tensor
    """The product before it is rounded to the data type."""


@cache
def factors(outputs: int, inputs: int, dtype: torch.dtype) -> Factors:
    made = torch.Generator().manual_seed(0)
    weight = (torch.randn(outputs, inputs, generator=made) / inputs**0.5).to(dtype)
    bias = torch.randn(outputs, generator=made).to(dtype)
    x = torch.randn(max(COUNTS), inputs, generator=made).to(dtype)
    return Factors(weight, bias, x, F.linear(x.double(), weight.double(), bias.double()))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", MATRICES, ids=str)
def test_a_product_is_right_and_a_row_is_the_same_among_any_number_of_others(
    cpp: CpuOps, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    given = factors(*shape, dtype)
    product = cpp.linear(given.weight, given.bias)
    alone = torch.cat([product(row[None]) for row in given.x])
    close(alone, given.exact.to(dtype))
    for count in COUNTS:
        assert torch.equal(product(given.x[:count]), alone[:count]), f"{count} rows together"
        assert torch.equal(product(given.x[-count:]), alone[-count:]), f"the last {count} rows together"


def test_rows_that_need_several_blocks_of_x_are_the_same_as_alone(cpp: CpuOps) -> None:
    for dtype in FLOATS:
        weight, x = torch.randn(40, 4000).to(dtype), torch.randn(300, 4000).to(dtype)
        product = cpp.linear(weight, None)
        together = product(x)
        for row in (0, 31, 63, 64, 65, 127, 128, 255, 299):
            assert torch.equal(product(x[row : row + 1])[0], together[row]), row


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", MATRICES, ids=str)
def test_products_in_float32_are_not_rounded_first(cpp: CpuOps, shape: tuple[int, int], dtype: torch.dtype) -> None:
    given = factors(*shape, dtype)
    for bias in (given.bias, None):
        want = given.exact - (0 if bias is not None else given.bias.double())
        got = cpp.linear(given.weight, bias)(given.x, float32=True)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(64, 32), (66, 70), (2, 5), (34, 33), (33, 64)], ids=str)
def test_a_matrix_packed_for_gating_gives_what_it_gives_otherwise(
    cpp: CpuOps, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    given = factors(*shape, dtype)
    gated, plain = cpp.linear(given.weight, given.bias, gated=True), cpp.linear(given.weight, given.bias)
    for wide in (False, True):
        assert torch.equal(gated(given.x, wide), plain(given.x, wide))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("shape", [*MATRICES, (66, 70)], ids=str)
def test_packed_matrices_give_their_weights_back(
    cpp: CpuOps, shape: tuple[int, int], gated: bool, dtype: torch.dtype
) -> None:
    weight = factors(*shape, dtype).weight
    product = cpp.linear(weight, None, gated)
    assert torch.equal(product.unpacked(), weight)
    ids = torch.tensor([shape[0] - 1, 0, shape[0] // 2, 0])
    assert torch.equal(product.unpacked(ids), weight[ids])
    assert product.unpacked(ids[:0]).shape == (0, shape[1])


def test_binding_copies_the_weight(cpp: CpuOps) -> None:
    weight, x = torch.randn(40, 50), torch.randn(3, 50)
    product = cpp.linear(weight, None)
    before = product(x)
    weight.zero_()
    assert torch.equal(product(x), before)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("inputs", [64, 70])
def test_the_rows_of_x_may_lie_anywhere(cpp: CpuOps, inputs: int, dtype: torch.dtype) -> None:
    given = factors(48, inputs, dtype)
    wide = torch.full((70, 3 * inputs), torch.nan, dtype=dtype)
    wide[:, inputs : 2 * inputs] = given.x
    product = cpp.linear(given.weight, given.bias)
    want = product(given.x)
    assert torch.equal(product(wide[:, inputs : 2 * inputs]), want)
    assert torch.equal(product(given.x.T.contiguous().T), want)
    assert torch.equal(product(given.x.view(7, 10, inputs)), want.view(7, 10, 48))
    assert torch.equal(product(given.x[0]), want[0])
    assert torch.equal(product(given.x[:1].expand(20, -1)), want[:1].expand(20, -1))
    strided = cpp.linear(given.weight.T.contiguous().T, torch.stack((given.bias, given.bias), 1)[:, 0])
    assert torch.equal(strided(given.x), want)


def test_an_operand_that_does_not_fit_is_refused(cpp: CpuOps) -> None:
    product = cpp.linear(torch.randn(40, 64), None)
    for wrong in (torch.randn(2, 32), torch.randn(2, 64).bfloat16(), torch.randn(2, 64).half()):
        with pytest.raises(ValueError, match=r"takes \[..., 64\] in torch.float32, got \[2, "):
            product(wrong)


# --- what happens to each token alone ------------------------------------------------------------------

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
    slots, angles = torch.empty(0, dtype=torch.int64), torch.empty(0, 8)
    cpp.write_kv(heads, heads, k_pool, v_pool, slots)
    assert cpp.rotary_write_kv(heads, heads, heads, angles, angles, k_pool, v_pool, slots).shape == heads.shape
    assert (k_pool == 1).all()
    assert (v_pool == 1).all()
    assert cpp.paged_attention(heads, k_pool, v_pool, rows_of([], [], 16)[0], 0.3).shape == heads.shape


# --- attention -----------------------------------------------------------------------------------------


def rows_of(lens: Sequence[int], contexts: Sequence[int], page_size: int, shared: int = 0) -> tuple[Rows, int]:
    """Rows with pages all over a pool, and its size; all rows have the first row's first `shared` pages."""
    counts = [-(-context // page_size) for context in contexts]
    order = np.random.default_rng(0).permutation(sum(counts) + 2).astype(np.int32)
    pages = np.full((len(lens), max([*counts, 1])), len(order) + 1000, np.int32)  # unused entries may be anything
    for r, count in enumerate(counts):
        pages[r, :count] = order[sum(counts[:r]) :][:count]
        pages[r, :shared] = pages[0, :shared]
    starts = np.cumsum([0, *lens], dtype=np.int32)
    host = np.array(lens, np.int32), np.array(contexts, np.int32)
    most = max([*lens, 0]), max([*contexts, 0])
    return Rows(torch.from_numpy(starts), torch.from_numpy(host[1]), torch.from_numpy(pages), *host, *most), len(order)


@dataclass(frozen=True)
class Attention:
    """One call; keys and values lie in a plain pool, and in one that the implementation is yet to write."""

    lens: tuple[int, ...]
    contexts: tuple[int, ...]
    heads: int
    kv_heads: int
    dim: int
    dtype: torch.dtype = torch.float32
    window: int | None = None
    softcap: float | None = None
    page_size: int = 16
    shared: int = 0

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Rows, int]:
        """q, k, v, slots of all positions, rows, pages."""
        rows, pages = rows_of(self.lens, self.contexts, self.page_size, self.shared)
        made = torch.Generator().manual_seed(0)
        q = torch.randn(sum(self.lens), self.heads, self.dim, generator=made).to(self.dtype)
        slots = []
        for r, context in enumerate(self.contexts):
            at = torch.arange(self.shared * self.page_size if r else 0, context)
            slots.append(rows.pages[r, at // self.page_size].long() * self.page_size + at % self.page_size)
        where = torch.cat([*slots, torch.empty(0, dtype=torch.int64)])
        k, v = torch.randn(2, len(where), self.kv_heads, self.dim, generator=made).to(self.dtype)
        return q, k, v, where, rows, pages

    def pools(self, pages: int) -> Tensor:
        """Slots that nobody wrote hold what is no number."""
        return torch.full((2, pages, self.page_size, self.kv_heads, self.dim), torch.nan, dtype=self.dtype)

    def by(self, module: Any, rows: Rows | None = None, q: Tensor | None = None) -> Tensor:
        """What an implementation gives; for other rows of the same pool, if there are any."""
        mine, k, v, slots, all_rows, pages = self.tensors
        k_pool, v_pool = self.pools(pages)
        module.write_kv(k, v, k_pool, v_pool, slots)
        return module.paged_attention(
            mine if q is None else q, k_pool, v_pool, rows or all_rows, self.dim**-0.5, self.window, self.softcap
        )


@cache
def expected(case: Attention) -> Tensor:
    return case.by(reference)


STEPS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((1,), (1,)),
    ((1,) * 9, (1, 15, 16, 17, 63, 64, 65, 128, 300)),
    ((13,), (13,)),
    ((5, 1, 8, 3), (5, 17, 31, 130)),
    ((70, 1, 33, 2), (200, 129, 33, 100)),
    ((64, 3), (64, 67)),
    ((1,) * 30, tuple(range(50, 80))),
]
LIMITS = [(None, None), (4, None), (70, None), (None, 5.0), (33, 5.0)]
HEADS = [(4, 4, 16), (6, 2, 24), (8, 1, 64), (9, 3, 64), (14, 2, 64), (4, 2, 128), (4, 2, 8), (2, 1, 256), (3, 1, 2)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_attention_is_the_reference_and_stale_slots_are_never_read(
    cpp: CpuOps, heads: tuple[int, int, int], dtype: torch.dtype
) -> None:
    for i, (lens, contexts) in enumerate(STEPS):
        for window, softcap in {LIMITS[0], LIMITS[i % len(LIMITS)], LIMITS[heads[2] % len(LIMITS)]}:
            case = Attention(lens, contexts, *heads, dtype, window, softcap, page_size=(16, 32, 48)[i % 3])
            close(case.by(cpp), expected(case))


@pytest.mark.parametrize("dim", [1, 3, 33])
def test_head_dimensions_may_be_odd_in_float32(cpp: CpuOps, dim: int) -> None:
    for lens, contexts in STEPS[:4]:
        case = Attention(lens, contexts, 4, 2, dim)
        close(case.by(cpp), expected(case))


@pytest.mark.parametrize("dtype", FLOATS)
def test_more_query_heads_than_a_tile_has_lines(cpp: CpuOps, dtype: torch.dtype) -> None:
    case = Attention((3, 1), (20, 70), 300, 1, 16, dtype)
    close(case.by(cpp), expected(case))


@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_may_share_pages_and_may_have_no_tokens(cpp: CpuOps, dtype: torch.dtype) -> None:
    for case in (
        Attention((1, 1, 20), (70, 65, 84), 4, 2, 32, dtype, shared=4),
        Attention((1, 0, 3, 0), (70, 65, 20, 0), 4, 2, 32, dtype),
    ):
        close(case.by(cpp), expected(case))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("heads", [(4, 4, 32), (8, 2, 64), (6, 2, 24), (16, 1, 32)], ids=str)
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (20, 3.0)])
def test_a_row_is_the_same_alone_and_among_others(
    cpp: CpuOps, heads: tuple[int, int, int], window: int | None, softcap: float | None, dtype: torch.dtype
) -> None:
    for lens, contexts in STEPS:
        case = Attention(lens, contexts, *heads, dtype, window, softcap)
        q, _, _, _, rows, _ = case.tensors
        together = case.by(cpp)
        for r in sorted({0, len(lens) // 2, len(lens) - 1}):
            part = slice(sum(lens[:r]), sum(lens[: r + 1]))
            alone = Rows(
                torch.tensor([0, lens[r]], dtype=torch.int32),
                rows.contexts[r : r + 1],
                rows.pages[r : r + 1],
                rows.lens_host[r : r + 1],
                rows.contexts_host[r : r + 1],
                lens[r],
                contexts[r],
            )
            assert torch.equal(case.by(cpp, alone, q[part]), together[part]), f"row {r} of {lens}"


CUTS = [(40, 40), (72, 8), (8, 72), (16, 16, 24, 24), (33, 47)]
SINGLE = (1,) * 80


def cut(case: Attention, lens: Sequence[int]) -> tuple[Rows, Tensor]:
    """The only row of a case as several rows, one after the other."""
    q, _, _, _, rows, _ = case.tensors
    ends = np.cumsum(lens) + case.contexts[0] - sum(lens)
    host = np.array(lens, np.int32), ends.astype(np.int32)
    starts, pages = torch.from_numpy(np.cumsum([0, *lens], dtype=np.int32)), rows.pages.expand(len(lens), -1)
    return Rows(starts, torch.from_numpy(host[1]), pages, *host, max(lens), int(ends.max())), q


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_chunk_is_the_same_however_it_is_cut(cpp: CpuOps, dtype: torch.dtype, window: int | None) -> None:
    """With AMX in bfloat16 there are two ways to compute, one of them for tiles of less than 8 lines (tokens × query
    heads of a key-value head). Each is the same for any cut; between them are differences of rounding."""
    case = Attention((80,), (200,), 8, 2, 32, dtype, window)
    whole = case.by(cpp)
    for lens in CUTS:
        assert torch.equal(case.by(cpp, *cut(case, lens)), whole), lens
    one_by_one = case.by(cpp, *cut(case, SINGLE))
    if cpp.library.isa.name == "amx" and dtype == torch.bfloat16:
        close(one_by_one, whole)
    else:
        assert torch.equal(one_by_one, whole)


# --- storing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dim", "pairs"), [(16, 8), (24, 12), (64, 8), (80, 40), (8, 1)])
def test_turning_and_storing_is_turning_then_storing(
    cpp: CpuOps, dim: int, pairs: int, interleaved: bool, dtype: torch.dtype
) -> None:
    tokens, heads, kv_heads = 21, 6, 2
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim).to(dtype)
    angles = torch.randn(tokens, pairs) * 3
    slots = torch.randperm(64)[:tokens]
    pools = torch.zeros(2, 2, 2, 32, kv_heads, dim, dtype=dtype)

    def parts() -> list[Tensor]:
        split = qkv.clone().split([heads * dim, kv_heads * dim, kv_heads * dim], -1)
        return [t.unflatten(-1, (-1, dim)) for t in split]

    q, k, v = parts()
    want_q, want_k = reference.rotary(q, k, angles.cos(), angles.sin(), interleaved)
    got = cpp.rotary_write_kv(*parts(), angles.cos(), angles.sin(), *pools[0], slots, interleaved)
    close(got, want_q)
    cpp.write_kv(want_k, v, *pools[1], slots)
    close(pools[0, 0], pools[1, 0])
    assert torch.equal(pools[0, 1], pools[1, 1])


@pytest.mark.parametrize("dtype", FLOATS)
def test_heads_that_lie_apart_are_stored_all_the_same(cpp: CpuOps, dtype: torch.dtype) -> None:
    k, v = torch.randn(2, 5, 2, 16).to(dtype)
    slots, pools = torch.tensor([3, 16, 31, 0, 7]), torch.zeros(2, 2, 2, 16, 2, 16, dtype=dtype)
    cpp.write_kv(k, v, *pools[0], slots)
    apart = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (k, v)]
    assert apart[0].stride() != k.stride()
    cpp.write_kv(*apart, *pools[1], slots)
    assert torch.equal(pools[0], pools[1])
    assert pools[0].count_nonzero() == k.count_nonzero() + v.count_nonzero()


@pytest.mark.parametrize("dtype", FLOATS)
def test_pages_can_be_copied_whole(cpp: CpuOps, dtype: torch.dtype) -> None:
    case = Attention((1,), (40,), 4, 2, 32, dtype)
    q, k, v, slots, rows, pages = case.tensors
    k_pool, v_pool = case.pools(pages + 3)
    cpp.write_kv(k, v, k_pool, v_pool, slots)
    want = cpp.paged_attention(q, k_pool, v_pool, rows, 0.2)
    for pool in (k_pool, v_pool):
        pool[pages : pages + 3] = pool[rows.pages[0].long()]
        pool[:pages] = torch.nan
    rows.pages[0] = torch.arange(pages, pages + 3)
    assert torch.equal(cpp.paged_attention(q, k_pool, v_pool, rows, 0.2), want)


# --- threads -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_number_of_threads_changes_nothing(cpp: CpuOps, threads: Any, dtype: torch.dtype) -> None:
    given = factors(100, 70, dtype)
    cases = [Attention(lens, contexts, 8, 2, 32, dtype) for lens, contexts in STEPS]

    def everything() -> list[Tensor]:
        product = cpp.linear(given.weight, given.bias, gated=True)
        found = [product(given.x[:rows]) for rows in (1, 13, 70)] + [product.unpacked()]
        found += [cpp.rms_norm(given.x, torch.ones(70, dtype=dtype), 1e-5), cpp.gated_act(given.x, "silu")]
        return found + [case.by(cpp) for case in cases]

    threads(1)
    want = everything()
    for count in (2, 4, 3):
        threads(count)
        for got, expected_one in zip(everything(), want, strict=True):
            assert torch.equal(got, expected_one)
