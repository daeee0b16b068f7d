"""Blocks recorded as programs against the same blocks run one by one with the same ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings, strategies as st
from test_models import CASES, COMMON, LENGTH_CASES, MIXED, architectures, prompts
from torch import Tensor

from quire.records import OpQuery
from quire_kernels import reference, select
from quire_kernels.cpu import build, isa
from quire_kernels.cpu.layout import Op, View
from quire_kernels.cpu.recorded import Program, _places
from quire_kernels.cpu.tape import Tape
from quire_models.blocks import DecoderModel
from quire_models.forward import Forward, ForwardBuffers, KvPool, KvShape
from quire_models.parts import Decoder
from quire_models.testing import Driver, Piece, build as build_decoder, run_tokens

pytestmark = pytest.mark.skipif(not (isa.available() and build.compiler()), reason="the C++ ops cannot be compiled")
DTYPES = ["float32", "bfloat16"]


@cache
def decoder_of(case_id: str) -> Decoder:
    case = {**CASES, **LENGTH_CASES}[case_id]
    config = getattr(transformers, case.config_class)(**{**({} if case.own_sizes else COMMON), **case.config})
    return architectures()[case.architecture].decoder(config)


def model_of(case_id: str, dtype: str, recorded: bool) -> DecoderModel:
    """A decoder with random weights, the same ones whether it is recorded or not."""
    ops = select.choose(OpQuery("cpu", dtype))
    decoder = decoder_of(case_id)
    ops = ops if recorded else replace(ops, blocks=reference.blocks)
    model = build_decoder(decoder, ops, getattr(torch, dtype))
    made = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=made) * 0.15)
    for module in model.modules():
        if hasattr(module, "prepare"):
            module.prepare()
    return model


def pieces_of(case_id: str, dtype: str = "float32") -> list[str]:
    model = model_of(case_id, dtype, True)
    found = model.ops.blocks(tuple(model.blocks), decoder_of(case_id).width)
    return ["program" if isinstance(piece, Program) else "block" for piece in found.pieces]


RECORDED = [
    "llama",
    "llama tied, with biases",
    "llama yarn",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3 partly rotary",
]
RECORDED += ["olmo2", "granite", "gpt2", "opt", "opt with norms after", "longrope", "dynamic", "mistral"]


@pytest.mark.parametrize("case_id", RECORDED)
def test_all_blocks_of_these_are_one_program(case_id: str) -> None:
    assert pieces_of(case_id) == ["program"]


def test_mixtures_of_experts_run_as_they_are_and_their_neighbours_do_not() -> None:
    assert pieces_of("mixtral") == ["block", "block"]
    assert pieces_of("qwen3 moe, some layers dense") == ["program", "block"]


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
    steps = [[Piece(0, 1)], [Piece(0, 40), Piece(1, 1)], [Piece(0, 2)], [Piece(1, 49), Piece(0, 17)]]
    with torch.inference_mode():
        got = run_tokens(model_of("llama", "float32", True), decoder_of("llama"), seqs, steps)
        want = run_tokens(model_of("llama", "float32", False), decoder_of("llama"), seqs, steps)
    for mine, theirs in zip(got, want, strict=True):
        assert torch.equal(mine, theirs)


def test_few_logit_rows_of_many_tokens_and_none_at_all() -> None:
    found = []
    for recorded in (True, False):
        model = model_of("llama", "float32", recorded)
        driver = Driver(model, decoder_of("llama"), [tokens.tolist() for tokens in prompts(20, 9)])
        outs = []
        for rows in ([7, 0, 7], [], [1]):
            fwd = driver.forward([Piece(0, 5), Piece(1, 3)])
            fwd.logit_rows = torch.tensor(rows, dtype=torch.int64)
            outs.append(model(fwd).clone())
        found.append(outs)
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine, theirs)


# --- programs out of blocks made up here ------------------------------------------------------------------

WIDTH = 24
Block = Callable[[Any, Any], Any]


@cache
def ops() -> select.Ops:
    return select.choose(OpQuery("cpu", "float32"))


@cache
def weights() -> dict[str, Any]:
    made = torch.Generator().manual_seed(0)
    matrix = torch.randn(2 * WIDTH, WIDTH, generator=made) / WIDTH**0.5
    return {
        "norm": torch.randn(WIDTH, generator=made),
        "gate_up": ops().linear(matrix, torch.randn(2 * WIDTH, generator=made), gated=True),
        "square": ops().linear(matrix[:WIDTH], None),
    }


def forward_of(tokens: int, adapters: Any = None) -> Forward:
    return ForwardBuffers(tokens, 1, 4, "cpu").fill(
        token_ids=[0] * tokens,
        positions=np.arange(tokens),
        slots=np.arange(tokens),
        query_starts=np.array([0, tokens], np.int32),
        contexts=np.array([tokens], np.int32),
        page_table=np.arange(4, dtype=np.int32)[None],
        logit_rows=np.arange(tokens - 1),
        kv=KvPool.allocate([KvShape(1, 8)], 4, 16, torch.float32, "cpu"),
        adapters=adapters,
    )


def same(blocks: Sequence[Block], tokens: int = 5) -> list[str]:
    """Run blocks in both ways; gives what became of each piece."""
    x, fwd = torch.randn(tokens, WIDTH, generator=torch.Generator().manual_seed(1)), forward_of(tokens)
    recorded = ops().blocks(blocks, WIDTH)
    want = reference.blocks(blocks, WIDTH)(x.clone(), fwd)
    for _ in range(2):
        assert torch.equal(recorded(x.clone(), fwd), want)
    assert want.isfinite().all()
    return ["program" if isinstance(piece, Program) else "block" for piece in recorded.pieces]


def gated(x: Any, fwd: Any) -> Any:
    return x + weights()["square"](ops().gated_act(weights()["gate_up"](x), "silu"))


def normed(x: Any, fwd: Any) -> Any:
    h, x = ops().add_rms_norm(x * 0.5, x, weights()["norm"], 1e-5)
    return x + ops().act(h, "gelu_tanh")


def tanh(x: Any, fwd: Any) -> Any:
    return torch.tanh(x)


def reads_what_was_joined(x: Any, fwd: Any) -> Any:
    both = weights()["gate_up"](x)
    y = ops().gated_act(both, "silu")
    return both.split([WIDTH, WIDTH], -1)[0] + y


def half_of_something(x: Any, fwd: Any) -> Any:
    return weights()["gate_up"](x).split([WIDTH, WIDTH], -1)[1]


def asks_for_its_size(x: Any, fwd: Any) -> Any:
    return x * float(x.shape[0])


def times_a_tensor(x: Any, fwd: Any) -> Any:
    return x * weights()["norm"]


def in_float32(x: Any, fwd: Any) -> Any:
    return weights()["square"](x, float32=True)


def sums_heads(x: Any, fwd: Any) -> Any:
    heads = x.unflatten(-1, (-1, 8))
    return ((heads + heads) * 0.5 + heads).flatten(1)


def norms_heads(x: Any, fwd: Any) -> Any:
    return ops().rms_norm(x.unflatten(-1, (-1, 8)), weights()["norm"][:8], 1e-5).flatten(1)


def in_other_places(x: Any, fwd: Any) -> Any:
    a, b = weights()["gate_up"](x).split([WIDTH, WIDTH], -1)
    return ops().layer_norm(b, None, weights()["norm"], 1e-5) + a


def unchanged(x: Any, fwd: Any) -> Any:
    return x


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

    run, x = ops().blocks([watched, watched], WIDTH), torch.randn(3, WIDTH)
    seen.clear()
    plain = run(x.clone(), forward_of(3)).clone()
    assert seen == []
    assert torch.equal(run(x.clone(), forward_of(3, adapters=object())), plain)
    assert seen == [Tensor, Tensor]


def test_the_weights_of_a_program_live_as_long_as_it_does() -> None:
    def block(norm: Tensor, matrix: Any) -> Block:
        return lambda x, fwd: matrix(ops().rms_norm(x, norm, 1e-5))

    norm, weight = torch.randn(WIDTH), torch.randn(WIDTH, WIDTH)
    run = ops().blocks([block(norm.clone(), ops().linear(weight.clone(), None))], WIDTH)
    run.pieces[0].blocks = ()  # nothing else holds them
    others = [torch.full((WIDTH,), torch.nan) for _ in range(100)]
    x = torch.randn(4, WIDTH)
    want = ops().linear(weight, None)(ops().rms_norm(x, norm, 1e-5))
    assert torch.equal(run(x.clone(), forward_of(4)), want)
    assert len(others) == 100


def test_timings_count_every_operation_and_begin_anew_when_they_were_told() -> None:
    run, x = ops().blocks([gated, tanh, normed, gated], WIDTH), torch.randn(4, WIDTH)
    run(x.clone(), forward_of(4))
    with run.timing() as timings:
        assert all(seconds == 0 for _, _, seconds in timings()), "what was not timed"
        run(x.clone(), forward_of(4))
        once = timings()
        assert all(seconds == 0 for _, _, seconds in timings())
    assert sum(count for _, count, _ in once) == sum(
        len(piece._code) for piece in run.pieces if isinstance(piece, Program)
    )
    assert all(seconds > 0 for _, _, seconds in once)
    counts = {name: count for name, count, _ in once}
    assert counts[f"product {WIDTH} x {2 * WIDTH}"] == counts[f"product {WIDTH} x {WIDTH}"] == 1
    assert {"act", "add", "scale", "add_rms_norm"} <= set(counts)


# --- where buffers lie --------------------------------------------------------------------------------------


@st.composite
def tapes(draw: Any) -> tuple[Tape, int]:
    """Instructions that read what was written before, some in place; and the buffer that is wanted in the end."""
    tape = Tape(draw(st.integers(1, 9)))
    written = [0]
    for _ in range(draw(st.integers(1, 25))):
        read = draw(st.lists(st.sampled_from(written), min_size=1, max_size=3))
        symbols = [tape.source() if b == 0 else symbol_of(tape, b) for b in read]
        out = symbols[0] if draw(st.booleans()) else tape.new(draw(st.integers(1, 9)))
        tape.write(Op.ADD, symbols, out)
        written = sorted({*written, out.buffer})
    return tape, draw(st.sampled_from(written))


def symbol_of(tape: Tape, buffer: int) -> Any:
    found = tape.source()
    found.buffer, found.width, found.stride = buffer, tape.widths[buffer], tape.widths[buffer]
    return found


def lives(tape: Tape, result: int) -> dict[int, tuple[int, int]]:
    """From which instruction to which each buffer is needed, 0 (which lies elsewhere) left out."""
    found: dict[int, tuple[int, int]] = {}
    for i, instruction in enumerate(tape.instructions):
        views: list[View] = [*instruction.inputs, instruction.out]
        for buffer in {view.buffer for view in views} - {0}:
            found[buffer] = (found.get(buffer, (i, i))[0], i)
    if result:
        found[result] = (found[result][0], len(tape.instructions))
    return found


@given(tapes())
@settings(max_examples=100, deadline=None)
def test_buffers_that_are_needed_at_the_same_time_never_overlap(made: tuple[Tape, int]) -> None:
    tape, result = made
    places, columns = _places(tape, result)
    needed = lives(tape, result)
    for buffer in needed:
        assert 0 <= places[buffer] <= columns - tape.widths[buffer]
    for one, other in combinations(needed, 2):
        together = needed[one][0] <= needed[other][1] and needed[other][0] <= needed[one][1]
        apart = places[one] + tape.widths[one] <= places[other] or places[other] + tape.widths[other] <= places[one]
        assert apart or not together


def test_buffers_take_the_place_of_dead_ones() -> None:
    tape = Tape(8)
    x = tape.source()
    for _ in range(20):
        x = x * 2.0 + x
    _, columns = _places(tape, x.buffer)
    assert columns <= 3 * 8


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=14))
@settings(max_examples=30, deadline=None)
def test_any_program_gives_what_its_operations_give_one_by_one(steps: list[tuple[int, int, int]]) -> None:
    norm, square = weights()["norm"], weights()["square"]
    kinds: list[Callable[[Any, Any], Any]] = [
        lambda a, b: a + b,
        lambda a, b: a * 0.5,
        lambda a, b: a.add_(b),
        lambda a, b: ops().rms_norm(a, norm, 1e-5),
        lambda a, b: square(a),
        lambda a, b: ops().gated_act(weights()["gate_up"](a), "silu"),
    ]

    def block(x: Any, fwd: Any) -> Any:
        made = [x * 1.0]
        for kind, a, b in steps:
            made.append(kinds[kind](made[a % len(made)], made[b % len(made)]))
        for each in made:
            x = x + ops().layer_norm(each, None, None, 1e-5)
        return x

    assert same([block, gated]) == ["program"]
