"""Buffers of compiled blocks: no two that are alive at the same time overlap."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
from compiled_rig import gated, ops, same, weights
from hypothesis import given, settings, strategies as st

from quire_kernels.cpu import build, isa
from quire_kernels.cpu.compiled.program import _buffer_offsets
from quire_kernels.cpu.compiled.tracer import Tracer
from quire_kernels.cpu.structs import Op, TensorView

pytestmark = pytest.mark.skipif(not (isa.available() and build.compiler()), reason="the C++ ops cannot be compiled")


@st.composite
def tapes(draw: Any) -> tuple[Tracer, int]:
    """Instructions that read what was written before, some in place; and the buffer that is wanted in the end."""
    tape = Tracer(draw(st.integers(1, 9)))
    written = [0]
    for _ in range(draw(st.integers(1, 25))):
        read = draw(st.lists(st.sampled_from(written), min_size=1, max_size=3))
        symbols = [tape.source() if b == 0 else symbol_of(tape, b) for b in read]
        out = symbols[0] if draw(st.booleans()) else tape.new(draw(st.integers(1, 9)))
        tape.write(Op.ADD, symbols, out)
        written = sorted({*written, out.buffer})
    return tape, draw(st.sampled_from(written))


def symbol_of(tape: Tracer, buffer: int) -> Any:
    found = tape.source()
    found.buffer, found.width, found.stride = buffer, tape.widths[buffer], tape.widths[buffer]
    return found


def lives(tape: Tracer, result: int) -> dict[int, tuple[int, int]]:
    """From which instruction to which each buffer is needed, 0 (which lies elsewhere) left out."""
    found: dict[int, tuple[int, int]] = {}
    for i, instruction in enumerate(tape.instructions):
        views: list[TensorView] = [*instruction.inputs, instruction.out]
        for buffer in {view.buffer for view in views} - {0}:
            found[buffer] = (found.get(buffer, (i, i))[0], i)
    if result:
        found[result] = (found[result][0], len(tape.instructions))
    return found


@given(tapes())
@settings(max_examples=100, deadline=None)
def test_buffers_that_are_needed_at_the_same_time_never_overlap(made: tuple[Tracer, int]) -> None:
    tape, result = made
    places, columns = _buffer_offsets(tape.instructions, tape.widths, result)
    needed = lives(tape, result)
    for buffer in needed:
        assert 0 <= places[buffer] <= columns - tape.widths[buffer]
    for one, other in combinations(needed, 2):
        together = needed[one][0] <= needed[other][1] and needed[other][0] <= needed[one][1]
        apart = places[one] + tape.widths[one] <= places[other] or places[other] + tape.widths[other] <= places[one]
        assert apart or not together


def test_buffers_take_the_place_of_dead_ones() -> None:
    tape = Tracer(8)
    x = tape.source()
    for _ in range(20):
        x = x * 2.0 + x
    _, columns = _buffer_offsets(tape.instructions, tape.widths, x.buffer)
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
