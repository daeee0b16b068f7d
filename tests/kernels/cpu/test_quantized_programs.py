"""Matrices of few bits inside recorded programs: activations that become part of a product, argmax, prefetching."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiled_rig import WIDTH, forward_of, ops, same
from quantized_rig import EVERY_BITS, IQ4_NL, NF4, random_matrix, random_x
from torch import Tensor

from quire_kernels import reference
from quire_kernels.cpu import build, isa
from quire_kernels.cpu.ops import CpuOps
from quire_kernels.cpu.structs import Op
from quire_kernels.low_rank import LowRankUpdate, Segments, pack_all
from quire_kernels.ops import ACTS
from quire_models.modules.quantized import JoinedLinear, QuantizedPieces

pytestmark = pytest.mark.skipif(not (isa.available() and build.compiler()), reason="the C++ ops cannot be compiled")

KINDS: list[tuple[int, Tensor | None, int]] = [(bits, None, 8) for bits in EVERY_BITS]
KINDS += [(4, None, 16), (4, IQ4_NL, 8), (4, NF4, 8), (6, None, 16)]


def bound(shape: tuple[int, int], bits: int, table: Tensor | None, activation_bits: int, gated: bool = False) -> Any:
    matrix = random_matrix((*shape, shape[1]), bits, table=table)
    return ops().linear_quantized(matrix, torch.randn(shape[0]), torch.float32, gated, activation_bits)


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_an_activation_is_part_of_the_product_before_it_and_changes_nothing(act: str, tokens: int) -> None:
    for kind in KINDS:
        first, second = bound((70, WIDTH), *kind), bound((WIDTH, 70), *kind)

        def block(x: Any, fwd: Any, first: Any = first, second: Any = second) -> Any:
            return second(ops().act(first(x), act))

        assert same([block], tokens) == ["program"]
        run = ops().fused_blocks([block], WIDTH)
        assert [Op(i.op) for i in run.stages[0]._code] == [Op.PRODUCT_QUANTIZED] * 2


@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_a_gated_activation_is_part_of_the_product_before_it(tokens: int) -> None:
    for kind in KINDS:
        gate_up, down = bound((2 * 35, WIDTH), *kind, gated=True), bound((WIDTH, 35), *kind)

        def block(x: Any, fwd: Any, gate_up: Any = gate_up, down: Any = down) -> Any:
            return x + down(ops().gated_act(gate_up(x), "silu"))

        assert same([block, block], tokens) == ["program"]
        run = ops().fused_blocks([block], WIDTH)
        assert [Op(i.op) for i in run.stages[0]._code] == [Op.PRODUCT_QUANTIZED] * 2 + [Op.ADD]


@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_adapters_change_a_product_whose_matrix_has_few_bits(tokens: int) -> None:
    slots = ops().low_rank(WIDTH, [(0, 70)], 2, torch.float32)
    update = LowRankUpdate(torch.randn(8, WIDTH), torch.randn(70, 8))
    for slot, packed in enumerate(pack_all([(slots, [update])])[0]):
        slots.put(slot, packed)
    step = forward_of(tokens, Segments.from_uses([((0, 1.0),)], [tokens], "cpu"))
    x = random_x(tokens, WIDTH)
    for kind in KINDS:
        first, second = bound((70, WIDTH), *kind), bound((WIDTH, 70), *kind)

        def block(x: Any, fwd: Any, first: Any = first, second: Any = second) -> Any:
            return second(slots(first(x), x, fwd.adapters))

        run = ops().fused_blocks([block, block], WIDTH)
        assert torch.equal(run(x.clone(), step), reference.fused_blocks([block, block], WIDTH)(x.clone(), step))
        codes = [Op(i.op) for i in run._stages_for(step.adapters)[0]._code]
        assert codes == [Op.PRODUCT_QUANTIZED, Op.LOW_RANK, Op.PRODUCT_QUANTIZED] * 2


@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_matrices_with_orders_of_their_own_are_multiplied_inside_a_program(tokens: int) -> None:
    parts = QuantizedPieces(70)
    for i, outputs in enumerate((40, 14, 16)):
        parts.put((0, 40, 54)[i], random_matrix((outputs, WIDTH, WIDTH), 4, ordered=True))
    joined = parts.bind(ops(), torch.randn(70), torch.float32, True, 8)
    assert isinstance(joined, JoinedLinear)
    down = bound((WIDTH, 35), 4, None, 8)

    def gated(x: Any, fwd: Any) -> Any:
        return x + down(ops().gated_act(joined(x), "silu"))

    def split(x: Any, fwd: Any) -> Any:
        return joined(x).split([WIDTH, 70 - WIDTH], -1)[0] + x

    assert same([gated, gated, split], tokens) == ["program"]
    run = ops().fused_blocks([gated], WIDTH)
    codes = [Op(i.op) for i in run.stages[0]._code]
    assert codes == [*[Op.PRODUCT_QUANTIZED] * 3, Op.GATED_ACT, Op.PRODUCT_QUANTIZED, Op.ADD]


@pytest.mark.parametrize("tokens", [1, 5])
def test_what_is_not_the_output_of_a_product_is_joined_outside_a_program(tokens: int) -> None:
    first, second = bound((8, WIDTH), 4, None, 8), bound((WIDTH - 8, WIDTH), 4, None, 8)

    def late(x: Any, fwd: Any) -> Any:
        parts = [first(x), second(x)]
        return torch.cat([ops().act(parts[0], "silu"), parts[1]], -1)

    def twice(x: Any, fwd: Any) -> Any:
        return torch.cat([x, x], -1)[:, :WIDTH]

    def rows(x: Any, fwd: Any) -> Any:
        return torch.cat([first(x), first(x)], 0)[: x.shape[0]].repeat(1, WIDTH // 8)

    for block in (late, twice, rows):
        assert same([block], tokens) == ["block"]


def test_time_is_reported_by_shape() -> None:
    first, second = bound((70, WIDTH), 4, None, 8), bound((WIDTH, 70), 4, None, 8)
    run = ops().fused_blocks([lambda x, fwd: second(first(x))], WIDTH)
    with run.timing() as rows:
        run(torch.randn(5, WIDTH), forward_of(5))
        assert {row.name for row in rows()} == {f"product_quantized {WIDTH} x 70", f"product_quantized 70 x {WIDTH}"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 7), (96, 8192), (160, 20001)])
@pytest.mark.usefixtures("threads")
def test_argmax_finds_what_the_op_finds_in_the_product(
    cpp: CpuOps, inputs: int, outputs: int, dtype: torch.dtype
) -> None:
    for activation_bits in (8, 16):
        matrix = random_matrix((outputs, inputs, 32), 4, offsets=True)
        product = cpp.linear_quantized(matrix, torch.randn(outputs).to(dtype), dtype, False, activation_bits)
        for rows in (1, 3, 33, 2):  # more rows than before, then fewer
            x = random_x(rows, 2 * inputs, dtype)[:, inputs:]
            assert product.argmax(x) == reference.argmax(product(x, float32=True)).tolist()


@pytest.mark.usefixtures("threads")
def test_the_number_of_threads_changes_nothing(cpp: CpuOps, threads: Any) -> None:
    matrices = [random_matrix((130, 96, 32), bits, offsets=True, ordered=True) for bits in EVERY_BITS]
    x = random_x(70, 96)

    def products() -> list[Tensor]:
        bound = [
            cpp.linear_quantized(matrix, None, torch.float32, True, bits) for matrix in matrices for bits in (8, 16)
        ]
        return [product(x[:rows]) for product in bound for rows in (1, 4, 5, 70)] + [b.unpacked() for b in bound]

    threads(1)
    want = products()
    for count in (2, 3):
        threads(count)
        assert all(torch.equal(got, one) for got, one in zip(products(), want, strict=True))
