"""Every built-in implementation of an op against the reference, and how implementations are chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quire.records import OpImpl, OpQuery
from quire_kernels import ops, reference, select, torch_attention, torch_ops
from quire_kernels.cpu import build, implementations, isa, library
from quire_kernels.ops import Rows

FLOATS = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def close(got: Tensor, want: Tensor) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    torch.testing.assert_close(got.float(), want.float(), atol=TOLERANCE[want.dtype], rtol=TOLERANCE[want.dtype])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


# --- norms, activations, embeddings ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("weight_dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 8), (7, 48), (5, 3, 16)])
def test_rms_norm_is_the_reference(shape: tuple[int, ...], dtype: torch.dtype, weight_dtype: torch.dtype) -> None:
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape[-1]).to(weight_dtype)
    before = x.clone()
    close(torch_ops.rms_norm(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6))
    assert torch.equal(x, before), "the input of a norm is still needed"


@pytest.mark.parametrize("dtype", FLOATS)
def test_adding_and_normalising_is_the_reference(dtype: torch.dtype) -> None:
    x, residual, weight = torch.randn(5, 32).to(dtype), torch.randn(5, 32).to(dtype), torch.randn(32).to(dtype)
    want = reference.add_rms_norm(x, residual, weight, 1e-5)
    got = torch_ops.add_rms_norm(x.clone(), residual.clone(), weight, 1e-5)
    close(got[0], want[0])
    close(got[1], want[1])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_is_the_reference(dtype: torch.dtype, affine: bool) -> None:
    x = torch.randn(6, 32).to(dtype) + 3
    weight, bias = (torch.randn(32).to(dtype), torch.randn(32).to(dtype)) if affine else (None, None)
    close(torch_ops.layer_norm(x, weight, bias, 1e-5), reference.layer_norm(x, weight, bias, 1e-5))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("act", ops.ACTS)
def test_gated_activations_are_the_reference(dtype: torch.dtype, act: str) -> None:
    gate_up = torch.randn(5, 24).to(dtype)
    before = gate_up.clone()
    close(torch_ops.gated_act(gate_up, act), reference.gated_act(gate_up, act))
    assert torch.equal(gate_up, before)


def test_activations_have_the_values_their_names_promise() -> None:
    x = torch.tensor([-1.0, 0.0, 2.0])
    assert reference.act(x, "relu2").tolist() == [0.0, 0.0, 4.0]
    torch.testing.assert_close(reference.act(x, "silu"), x * torch.sigmoid(x))
    torch.testing.assert_close(reference.act(x, "quick_gelu"), x * torch.sigmoid(1.702 * x))
    assert reference.act(x, "identity").tolist() == x.tolist()


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_embedding_gives_rows_that_may_be_overwritten(scale: float) -> None:
    table, ids = torch.randn(11, 6), torch.tensor([3, 3, 0])
    got = torch_ops.embedding(ids, table, scale)
    close(got, reference.embedding(ids, table, scale))
    got.zero_()
    assert table[3].abs().sum() > 0


def test_logits_are_scaled_before_they_are_capped() -> None:
    x = torch.tensor([[100.0, -2.0]])
    got = reference.logits_tail(x, 0.5, 30.0)
    torch.testing.assert_close(got, 30 * torch.tanh(x * 0.5 / 30))
    assert reference.logits_tail(x.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("experts", [1, 4, 9])
def test_mixture_is_the_reference(dtype: torch.dtype, experts: int) -> None:
    x, hidden, top_k = torch.randn(7, 16).to(dtype), 12, min(2, experts)
    weights, chosen = torch.randn(7, experts).softmax(-1).topk(top_k, -1)
    gate_up = (torch.randn(experts, 2 * hidden, 16) / 4).to(dtype)
    down = (torch.randn(experts, 16, hidden) / 4).to(dtype)
    arguments = (x, weights, chosen, gate_up, down, "silu")
    close(torch_ops.moe(*arguments), reference.moe(*arguments))


# --- rotary and page pool ----------------------------------------------------------------------------


def rotary_inputs(dtype: torch.dtype, half: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    qkv = torch.randn(5, (4 + 2 + 2) * 16).to(dtype)
    q, k, v = (t.unflatten(-1, (-1, 16)) for t in qkv.split([64, 32, 32], -1))
    angles = torch.randn(5, half)
    return q, k, v, angles.cos(), angles.sin()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("half", [8, 4])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_is_the_reference(dtype: torch.dtype, half: int, interleaved: bool) -> None:
    q, k, _, cos, sin = rotary_inputs(dtype, half)
    want = reference.rotary(q, k, cos, sin, interleaved)
    got = torch_ops.rotary(q.clone(), k.clone(), cos, sin, interleaved)
    close(got[0], want[0])
    close(got[1], want[1])


def test_rotary_keeps_lengths_and_depends_only_on_distance() -> None:
    q, k = torch.randn(1, 1, 8).expand(6, 1, 8), torch.randn(1, 1, 8).expand(6, 1, 8)
    angles = torch.arange(6)[:, None] * torch.tensor([1.0, 0.3, 0.1, 0.01])
    q, k = reference.rotary(q, k, angles.cos(), angles.sin())
    scores = (q[:, 0] @ k[:, 0].T).diagonal(-2)
    torch.testing.assert_close(scores, scores[:1].expand_as(scores))
    torch.testing.assert_close(q.norm(dim=-1), q[:1].norm(dim=-1).expand(6, 1))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("fused", [False, True])
def test_keys_and_values_land_in_their_slots(dtype: torch.dtype, fused: bool) -> None:
    q, k, v, cos, sin = rotary_inputs(dtype, 8)
    slots = torch.tensor([7, 0, 23, 8, 11])
    pools = [torch.zeros(2, 6, 4, 2, 16, dtype=dtype) for _ in range(2)]
    for (k_pool, v_pool), module in zip(pools, (reference, torch_ops), strict=True):
        if fused:
            module.rotary_write_kv(q.clone(), k.clone(), v, cos, sin, k_pool, v_pool, slots)
        else:
            module.write_kv(k, v, k_pool, v_pool, slots)
    close(pools[1], pools[0])
    assert torch.equal(pools[1][1].view(-1, 2, 16)[slots], v)
    assert pools[1].abs().sum((0, 3, 4)).count_nonzero() == len(slots), "other slots are untouched"


# --- attention ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Chunks (tokens, context) over scattered pages; unused pages hold garbage."""

    chunks: Sequence[tuple[int, int]]
    page_size: int = 4

    def rows(self) -> tuple[Rows, int]:
        lens, contexts = (np.array(column, dtype=np.int32) for column in zip(*self.chunks, strict=True))
        counts = -(-contexts // self.page_size)
        order = np.random.default_rng(1).permutation(int(counts.sum()) + 3).astype(np.int32)
        pages = np.full((len(lens), int(counts.max())), order[-1], dtype=np.int32)
        for r, count in enumerate(counts):
            pages[r, :count] = order[counts[:r].sum() :][:count]
        starts = np.concatenate([[0], np.cumsum(lens)]).astype(np.int32)
        on_device = torch.from_numpy(starts), torch.from_numpy(contexts), torch.from_numpy(pages)
        return Rows(*on_device, lens, contexts, int(lens.max()), int(contexts.max())), len(order)


RAGGED = {
    "one token": [(1, 1)],
    "single tokens of one length": [(1, 9)] * 3,
    "single tokens of many lengths": [(1, n) for n in (1, 90, 3, 17, 4, 61, 5)],
    "a whole prompt": [(13, 13)],
    "whole prompts of one length": [(6, 6), (6, 6)],
    "a chunk in the middle": [(5, 12)],
    "everything at once": [(1, 9), (7, 7), (3, 20), (1, 33), (3, 21), (1, 1), (12, 30)],
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (4, 1)], ids=str)
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("chunks", RAGGED.values(), ids=RAGGED)
def test_paged_attention_is_the_reference(
    chunks: list[tuple[int, int]],
    softcap: float | None,
    window: int | None,
    heads: tuple[int, int],
    dtype: torch.dtype,
) -> None:
    rows, num_pages = Batch(chunks).rows()
    q = torch.randn(sum(n for n, _ in chunks), heads[0], 16).to(dtype)
    k_pool, v_pool = torch.randn(2, num_pages, 4, heads[1], 16).to(dtype)
    arguments = (q, k_pool, v_pool, rows, 0.3, window, softcap)
    close(torch_ops.paged_attention(*arguments), reference.paged_attention(*arguments))


def test_long_chunks_are_cut_into_tiles_that_agree_with_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_attention, "TILE", 4)
    monkeypatch.setattr(torch_attention, "MOST_GATHERED", 32)
    chunks = [(11, 30), (1, 40), (1, 41), (9, 50), (1, 3)]
    rows, num_pages = Batch(chunks).rows()
    q, (k_pool, v_pool) = torch.randn(23, 4, 8), torch.randn(2, num_pages, 4, 2, 8)
    for window in (None, 7):
        arguments = (q, k_pool, v_pool, rows, 0.3, window, None)
        close(torch_ops.paged_attention(*arguments), reference.paged_attention(*arguments))


@pytest.mark.parametrize("module", [reference, torch_ops], ids=["reference", "torch"])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_pages_of_other_seqs_are_never_read(module: Any, softcap: float | None) -> None:
    chunks = [(1, 5), (1, 30), (3, 11), (1, 28)]
    rows, num_pages = Batch(chunks).rows()
    k_pool, v_pool = torch.randn(2, num_pages, 4, 2, 8)
    owned = rows.pages[2, :3].long()
    others = torch.ones(num_pages, dtype=torch.bool)
    others[owned] = False
    k_pool[others], v_pool[others] = torch.nan, torch.nan
    out = module.paged_attention(torch.randn(6, 4, 8), k_pool, v_pool, rows, 0.3, None, softcap)
    assert out[2:5].isfinite().all()
    assert out[[0, 1, 5]].isnan().all()


def test_a_row_gets_the_same_answer_whatever_stands_beside_it() -> None:
    chunks = [(1, 30), (4, 9), (1, 5), (1, 31), (6, 6)]
    rows, num_pages = Batch(chunks).rows()
    q, (k_pool, v_pool) = torch.randn(13, 4, 8), torch.randn(2, num_pages, 4, 2, 8)
    together = torch_ops.paged_attention(q, k_pool, v_pool, rows, 0.3)
    start = 0
    for r, (length, context) in enumerate(chunks):
        lens, contexts = np.array([length], np.int32), np.array([context], np.int32)
        starts = torch.tensor([0, length], dtype=torch.int32)
        alone = Rows(starts, torch.from_numpy(contexts), rows.pages[r : r + 1], lens, contexts, length, context)
        out = torch_ops.paged_attention(q[start : start + length], k_pool, v_pool, alone, 0.3)
        torch.testing.assert_close(out, together[start : start + length], atol=1e-6, rtol=1e-6)
        start += length


def test_like_rows_share_one_call_and_unlike_ones_do_not_pad_each_other() -> None:
    page_size = 4
    contexts = [200, 203, 199, 8, 5, 1000]
    rows, _ = Batch([(1, n) for n in contexts], page_size).rows()
    groups = torch_attention._groups_of(rows, page_size, None, False, torch.empty(0, dtype=torch.float32))
    assert sorted(group.count for group in groups) == [1, 2, 3]
    gathered = sum(len(group.pages) * page_size for group in groups)
    assert gathered < 1.1 * sum(contexts)
    again = torch_attention._groups_of(rows, page_size, None, False, torch.empty(0, dtype=torch.float32))
    assert again is groups, "worked out once per step"


# --- selection ---------------------------------------------------------------------------------------


CPU = OpQuery(device="cpu", dtype="float32")
PAGED = ("paged_attention", "write_kv", "rotary_write_kv")
needs_cpp = pytest.mark.skipif(
    not (isa.available() and build.compiler()), reason="there is no compiler, or no instruction set for the C++ ops"
)


def impl(name: str, priority: int, reason: str | None = None, load: Callable[[], Any] | None = None) -> OpImpl:
    return OpImpl(name, "act", lambda _: reason, load or (lambda: reference.act), priority)


def paged(name: str, op: str, layout: str, reason: str | None = None) -> OpImpl:
    return OpImpl(name, op, lambda _: reason, lambda: getattr(reference, op), 50, layout)


def report(query: OpQuery = CPU, offered: Sequence[tuple[str, OpImpl]] = ()) -> dict[str, select.Choice]:
    return {choice.op: choice for choice in select.choose(query, offered).report}


def reasons(choice: select.Choice) -> dict[str, str]:
    return {rejected.name: rejected.reason for rejected in choice.rejected}


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """What was loaded before is forgotten, during the test and after it."""
    caches = (implementations._ops, implementations._sampling, implementations._library_or_error)
    for each in (*caches, library.load, build.compiler):
        each.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    for each in (*caches, library.load, build.compiler):
        each.cache_clear()


def test_the_table_and_the_chosen_ops_have_the_same_names() -> None:
    assert [f.name for f in fields(select.Ops) if f.name != "report"] == list(ops.TABLE)
    assert set(torch_ops.__all__) <= set(ops.TABLE)
    assert {*implementations.OPS, *implementations.SAMPLING} <= set(ops.TABLE)
    assert set(implementations.PAGED) == {"paged_attention", *select.STORES}
    for name in ops.TABLE:
        assert callable(getattr(reference, name))


def test_every_op_is_documented_with_shapes() -> None:
    for name, protocol in ops.TABLE.items():
        assert protocol.__doc__, name
        assert 2 <= len(protocol.__doc__.strip().splitlines()) <= 9, name


def test_the_highest_priority_that_supports_the_query_wins_and_the_others_have_reasons() -> None:
    mine = impl("mine", 10)
    offered = [("p", impl("cuda only", 30, "needs a GPU")), ("q", impl("slower", 5)), ("r", mine)]
    act = report(CPU, offered)["act"]
    assert (act.name, act.plugin) == ("mine", "r")
    why = reasons(act)
    assert why["cuda only"] == "needs a GPU"
    assert why["slower"] == "mine has a higher priority"
    assert why["reference"] == "mine has a higher priority"


def test_an_implementation_that_fails_to_load_is_passed_over_with_its_error() -> None:
    def broken() -> Any:
        raise OSError("no such library")

    plain, act = report()["act"], report(CPU, [("p", impl("native", 10, load=broken))])["act"]
    assert (act.name, act.plugin) == (plain.name, plain.plugin)
    assert act.rejected[0].reason == "it could not be loaded: OSError: no such library"


def test_an_implementation_of_an_unknown_op_is_refused_with_the_names_there_are() -> None:
    stray = OpImpl("x", "softmax", lambda _: None, lambda: reference.act)
    with pytest.raises(ValueError, match=r"'p' implements an op 'softmax'.*rms_norm"):
        select.choose(CPU, [("p", stray)])


def test_reference_ops_are_all_references() -> None:
    assert {choice.name for choice in select.reference().report} == {"reference"}


# --- layouts of pages: attention and what stores for it must agree -------------------------------------


def test_attention_of_another_layout_is_chosen_together_with_what_stores_for_it() -> None:
    chosen = report(CPU, [("p", paged(f"turned {op}", op, "turned")) for op in PAGED])
    assert [chosen[op].name for op in PAGED] == [f"turned {op}" for op in PAGED]


@pytest.mark.parametrize("missing", select.STORES)
@pytest.mark.parametrize("reason", [None, "not here"])
def test_attention_whose_pages_nothing_stores_is_passed_over(missing: str, reason: str | None) -> None:
    offered = [("p", paged(f"turned {op}", op, "turned")) for op in PAGED if op != missing]
    if reason:
        offered.append(("p", paged("no use", missing, "turned", reason)))
    before, chosen = report(), report(CPU, offered)
    assert [chosen[op].name for op in PAGED] == [before[op].name for op in PAGED]
    why = reasons(chosen["paged_attention"])["turned paged_attention"]
    assert why.startswith("its pages are turned, and nothing stores them so: ")
    assert reason is None or f"no use: {reason}" in why
    stores = next(op for op in select.STORES if op != missing)
    assert reasons(chosen[stores])[f"turned {stores}"].startswith("its pages are turned, those of paged_attention are ")


def test_stores_of_a_layout_that_attention_does_not_have_are_passed_over() -> None:
    before, chosen = report(), report(CPU, [("p", paged("turned", "write_kv", "turned"))])
    assert chosen["write_kv"].name == before["write_kv"].name
    assert reasons(chosen["write_kv"])["turned"].startswith("its pages are turned, those of paged_attention are ")


def test_plain_attention_takes_the_pages_of_plain_stores_from_the_built_in_ones() -> None:
    chosen = report(CPU, [("p", paged("mine", "paged_attention", "plain"))])
    assert [chosen[op].name for op in PAGED] == ["mine", "torch", "torch"]


@needs_cpp
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cpp_ops_are_chosen_where_they_can_run(dtype: str) -> None:
    chosen, name = report(OpQuery("cpu", dtype, head_dims=(64, 16))), f"cpp-{isa.available()[0].name}"
    for op in (*implementations.OPS, *implementations.SAMPLING):
        assert chosen[op].name == name, op
        assert reasons(chosen[op])["reference"] == f"{name} has a higher priority"


@needs_cpp
@pytest.mark.parametrize(
    ("query", "reason"),
    [
        (OpQuery("cpu", "float32", page_size=24), "its pages are multiples of 16 tokens, not 24"),
        (OpQuery("cpu", "bfloat16", page_size=1), "its pages are multiples of 16 tokens, not 1"),
        (OpQuery("cpu", "bfloat16", head_dims=(64, 33)), "its head dimensions are multiples of 2, not 33"),
        (
            OpQuery("cpu", "bfloat16", head_dims=(64, 6), kv_dtype="int8"),
            "its head dimensions are multiples of 4, not 6",
        ),
    ],
)
def test_pages_that_cannot_be_grouped_are_left_to_torch_and_all_else_is_not(query: OpQuery, reason: str) -> None:
    chosen, name = report(query), f"cpp-{isa.available()[0].name}"
    for op in PAGED:
        assert chosen[op].name == ("torch-int8" if query.kv_dtype == "int8" else "torch")
        assert reasons(chosen[op])[name] == reason
    assert chosen["linear"].name == chosen["rms_norm"].name == name


@needs_cpp
def test_odd_head_dimensions_are_no_obstacle_in_float32() -> None:
    chosen = report(OpQuery("cpu", "float32", head_dims=(33,)))
    assert {chosen[op].name for op in PAGED} == {f"cpp-{isa.available()[0].name}"}


def test_other_data_types_and_devices_are_left_to_torch_with_a_reason() -> None:
    if not isa.available():
        pytest.skip("no instruction set for the C++ ops: that is the reason")
    name = f"cpp-{isa.available()[0].name}"
    half, cuda = report(OpQuery("cpu", "float16")), report(OpQuery("cuda", "bfloat16"))
    for op in implementations.OPS:
        assert half[op].name in ("torch", "reference")
        assert reasons(half[op])[name] == "it computes in float32 and bfloat16, not float16"
        assert reasons(cuda[op])[name] == "it is for CPUs"


def test_without_a_compiler_torch_takes_over_and_says_why_once(
    nothing_compiled: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not isa.available():
        pytest.skip("no instruction set for the C++ ops: that is the reason")
    nothing_compiled.delenv("CXX", raising=False)
    nothing_compiled.setattr(build.shutil, "which", lambda name: None)
    chosen = report()
    for op in (*implementations.OPS, *implementations.SAMPLING):
        assert chosen[op].name in ("torch", "reference"), op
        [why] = [reason for name, reason in reasons(chosen[op]).items() if name.startswith("cpp")]
        told = "its pages are grouped" if op in select.STORES else "it could not be loaded: BuildError: there is no C++"
        assert why.startswith(told), op
    assert [text for text in caplog.messages if "Plain torch takes the place" in text] == [
        "Plain torch takes the place of the C++ ops: there is no C++ compiler (g++, c++ or clang++ in PATH, or $CXX)"
    ]


def test_a_cpu_without_the_instructions_is_told_which_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implementations, "available", tuple)
    chosen = report()
    assert {choice.name for choice in chosen.values()} == {"torch", "reference"}
    assert reasons(chosen["linear"])["cpp"] == "this CPU lacks instructions (at least avx2, f16c, fma)"
