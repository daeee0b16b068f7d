"""Compiled blocks compute what the same blocks compute one by one with the same ops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from compiled_rig import (
    DTYPES,
    RECORDED,
    WIDTH,
    Block,
    asks_for_its_size,
    decoder_of,
    forward_of,
    gated,
    half_of_something,
    in_float32,
    in_other_places,
    model_of,
    normed,
    norms_heads,
    ops,
    pieces_of,
    reads_what_was_joined,
    same,
    sums_heads,
    tanh,
    times_a_tensor,
    unchanged,
    weights,
)
from tiny_architectures import MIXED, prompts
from torch import Tensor

from quire_kernels.cpu import build, isa
from quire_kernels.cpu.compiled.amounts import Amounts
from quire_kernels.cpu.compiled.program import Program
from quire_kernels.cpu.structs import ALL, EARLY, Instruction, Op, StepStruct
from quire_kernels.ops import AttentionMetadata
from quire_models.testing import ChunkSpec, ModelDriver, run_tokens

pytestmark = pytest.mark.skipif(not (isa.available() and build.compiler()), reason="the C++ ops cannot be compiled")


@pytest.mark.parametrize("case_id", RECORDED)
def test_all_blocks_of_these_are_one_program(case_id: str) -> None:
    assert pieces_of(case_id) == ["program"]


def test_mixtures_of_experts_are_recorded_too() -> None:
    assert pieces_of("mixtral") == ["program"]
    assert pieces_of("qwen3 moe, some layers dense") == ["program"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case_id", [*RECORDED, "mixtral", "qwen3 moe, some layers dense"])
def test_programs_give_what_the_blocks_give_one_by_one(case_id: str, dtype: str) -> None:
    seqs = [tokens.tolist() for tokens in prompts(23, 9, 30, 1)]
    with torch.inference_mode():
        got, want = (
            run_tokens(model_of(case_id, dtype, recorded), decoder_of(case_id), seqs, MIXED)
            for recorded in (True, False)
        )
    for mine, theirs in zip(got, want, strict=True):
        assert mine.isfinite().all()
        assert torch.equal(mine, theirs)


def test_memory_grows_with_the_largest_step_and_earlier_results_were_right() -> None:
    seqs = [tokens.tolist() for tokens in prompts(60, 50)]
    steps = [
        [ChunkSpec(0, 1)],
        [ChunkSpec(0, 40), ChunkSpec(1, 1)],
        [ChunkSpec(0, 2)],
        [ChunkSpec(1, 49), ChunkSpec(0, 17)],
    ]
    with torch.inference_mode():
        got = run_tokens(model_of("llama", "float32", True), decoder_of("llama"), seqs, steps)
        want = run_tokens(model_of("llama", "float32", False), decoder_of("llama"), seqs, steps)
    for mine, theirs in zip(got, want, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("case_id", ["llama", "mixtral"])
def test_few_logit_rows_of_many_tokens_and_none_at_all(case_id: str) -> None:
    """Of rows that end with their logit rows, the last block computes only these."""
    found = []
    for recorded in (True, False):
        model, outs = model_of(case_id, "float32", recorded), []
        for rows in ([7, 0, 7], [], [1], [4], [7], [4, 7], [3, 4, 6, 7], [3, 4, 5], [0, 1, 2, 3, 4], [2, 4]):
            driver = ModelDriver(model, decoder_of(case_id), [tokens.tolist() for tokens in prompts(20, 9)])
            driver.forward([ChunkSpec(0, 2)])
            fwd = driver.forward([ChunkSpec(0, 5), ChunkSpec(1, 3)])
            fwd.logit_rows = torch.tensor(rows, dtype=torch.int64)
            outs.append(model(fwd).clone())
        found.append(outs)
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine, theirs)


def test_profiles_count_the_logit_rows_of_the_last_block() -> None:
    """Of a prompt of five tokens, whose last token alone has logits, and of one of three that has none."""
    code = (Instruction * 2)(*(Instruction(op=Op.PRODUCT, selected=selected) for selected in (ALL, EARLY)))
    for instruction in code:
        instruction.packed.inputs = instruction.packed.outputs = 10
    lens = np.array([5, 3], np.int32)
    rows = SimpleNamespace(lens_host=lens, contexts_host=lens)
    for logit_rows, flops in (([4], 200), ([3], 1600)):
        amounts = Amounts(code)
        step = StepStruct(tokens=8, num_selected=1, is_bf16=1)
        amounts.add(step, SimpleNamespace(rows=rows, logit_rows=torch.tensor(logit_rows)))
        assert [count for _, count in amounts.drain()] == [1600, flops]


@pytest.mark.parametrize("block", [gated, normed, sums_heads, norms_heads, in_other_places, unchanged])
def test_blocks_that_can_be_recorded_are(block: Block) -> None:
    assert same([block, gated, block, block]) == ["program"]


@pytest.mark.parametrize(
    "block", [tanh, reads_what_was_joined, half_of_something, asks_for_its_size, times_a_tensor, in_float32]
)
def test_a_block_that_cannot_be_recorded_is_left_alone_and_its_neighbours_are_recorded(block: Block) -> None:
    assert same([gated, normed, block, normed, gated]) == ["program", "block", "program"]
    assert same([block, block, gated, block]) == ["block", "block", "program", "block"]


def test_no_blocks_give_what_they_are_given() -> None:
    assert same([]) == []


@pytest.mark.parametrize("last", ["fails", "works"])
def test_the_last_block_may_select_tokens_and_one_that_fails_after_that_leaves_no_trace(last: str) -> None:
    def select_rows(x: Any, fwd: Any) -> Any:
        x = x.index_select(0, fwd.logit_rows)
        return torch.tanh(x) if last == "fails" else ops().rms_norm(x, weights()["norm"], 1e-5)

    kinds = same([gated, select_rows])
    assert kinds == (["program", "block"] if last == "fails" else ["program"])


def test_an_activation_is_not_joined_to_a_product_of_a_block_before_that_is_kept() -> None:
    matrix = ops().linear(torch.eye(WIDTH).repeat(1, 1) + 0.1, None, gated=True)

    def product(x: Any, fwd: Any) -> Any:
        return matrix(x)

    def gate_and_fail(x: Any, fwd: Any) -> Any:
        return torch.cat([ops().gated_act(x, "silu")] * 2, -1)

    assert same([product, gate_and_fail, gated]) == ["program", "block", "program"]


def test_steps_with_adapters_run_block_by_block() -> None:
    seen: list[type] = []

    def watched(x: Any, fwd: Any) -> Any:
        seen.append(type(x))
        return gated(x, fwd)

    run, x = ops().fused_blocks([watched, watched], WIDTH), torch.randn(3, WIDTH)
    seen.clear()
    plain = run(x.clone(), forward_of(3)).clone()
    assert seen == []
    assert torch.equal(run(x.clone(), forward_of(3, adapters=object())), plain)
    assert seen == [Tensor, Tensor]


def test_the_weights_of_a_program_live_as_long_as_it_does() -> None:
    def block(norm: Tensor, matrix: Any) -> Block:
        return lambda x, fwd: matrix(ops().rms_norm(x, norm, 1e-5))

    norm, weight = torch.randn(WIDTH), torch.randn(WIDTH, WIDTH)
    run = ops().fused_blocks([block(norm.clone(), ops().linear(weight.clone(), None))], WIDTH)
    run.stages[0].blocks = ()  # nothing else holds them
    others = [torch.full((WIDTH,), torch.nan) for _ in range(100)]
    x = torch.randn(4, WIDTH)
    want = ops().linear(weight, None)(ops().rms_norm(x, norm, 1e-5))
    assert torch.equal(run(x.clone(), forward_of(4)), want)
    assert len(others) == 100


def test_timings_count_every_operation_and_reset_when_reported() -> None:
    run, x = ops().fused_blocks([gated, tanh, normed, gated], WIDTH), torch.randn(4, WIDTH)
    run(x.clone(), forward_of(4))
    with run.timing() as timings:
        assert all(seconds == 0 for _, _, seconds, *_ in timings()), "what was not timed"
        run(x.clone(), forward_of(4))
        once = timings()
        assert all(seconds == 0 for _, _, seconds, *_ in timings())
    assert sum(count for _, count, *_ in once) == sum(
        len(piece._code) for piece in run.stages if isinstance(piece, Program)
    )
    assert all(seconds > 0 for _, _, seconds, *_ in once)
    counts = {name: count for name, count, *_ in once}
    product = next(row for row in once if row.name == f"product {WIDTH} x {WIDTH}")
    assert (product.bytes, product.flops) == (4 * (WIDTH * WIDTH + 4 * 2 * WIDTH), 2 * 4 * WIDTH * WIDTH)
    assert counts[f"product {WIDTH} x {2 * WIDTH}"] == counts[f"product {WIDTH} x {WIDTH}"] == 1
    assert {"act", "add", "scale", "add_rms_norm"} <= set(counts)


@pytest.mark.parametrize("window", [0, 1, 3, 100])
def test_attention_counts_what_its_tokens_see(window: int) -> None:
    heads, kv_heads, width, lens, contexts = 4, 2, 8, [3, 1, 5], [3, 9, 7]
    instruction = Instruction(op=Op.ATTENTION, window=window)
    for view, parts in zip(instruction.inputs, (heads, kv_heads, kv_heads), strict=True):
        view.parts, view.width = parts, width
    rows = AttentionMetadata.unpaged(lens, torch.device("cpu"))
    rows.contexts_host = np.array(contexts, np.int32)
    amounts = Amounts((Instruction * 1)(instruction))
    amounts.add(StepStruct(tokens=sum(lens)), SimpleNamespace(rows=rows))
    seen = [
        [{p for p in range(end) if not window or p >= end - window} for end in range(context - n + 1, context + 1)]
        for n, context in zip(lens, contexts, strict=True)
    ]
    positions = sum(len(set.union(*tokens)) for tokens in seen)
    pairs = sum(len(each) for tokens in seen for each in tokens)
    assert amounts.drain() == [(4 * 2 * kv_heads * width * positions, 4 * heads * width * pairs)]
    assert amounts.drain() == [(0, 0)]
