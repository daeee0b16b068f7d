"""AMX kernels of the other ops, emulated: as the reference, and a row the same among any number of others."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from attention_rig import SINGLE, STEPS, Attention, cut, expected
from cpu_rig import COUNTS, close, factors

from quire_kernels import reference
from quire_kernels.cpu import library
from quire_kernels.cpu.library import Library
from quire_kernels.cpu.ops import CpuOps
from quire_kernels.cpu.structs import StepStruct
from quire_kernels.low_rank import LowRankUpdate, Segments, pack_all

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("seeded")]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("shape", [(96, 64), (33, 65), (48, 1536)], ids=str)
def test_bfloat16_products(
    amx: CpuOps, shape: tuple[int, int], compressed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compressed:
        monkeypatch.setattr(library, "MAX_RARE_SHARE", 1 << 40)
    given = factors(*shape, torch.bfloat16)
    product = amx.linear(given.weight, given.bias)
    assert (product.packed.book is not None) == compressed
    alone = torch.cat([product(row[None]) for row in given.x])
    close(alone, given.exact.bfloat16())
    for count in COUNTS:
        assert torch.equal(product(given.x[:count]), alone[:count]), count


@pytest.mark.parametrize("shape", [(96, 64), (33, 65), (48, 1537)], ids=str)
def test_int8_products(amx: CpuOps, shape: tuple[int, int]) -> None:
    given = factors(*shape, torch.float32)
    product = amx.linear_int8(given.weight, given.bias)
    want = reference.linear_int8(given.weight, given.bias)(given.x)
    for count in COUNTS:
        torch.testing.assert_close(product(given.x[:count]), want[:count], atol=1e-6, rtol=1e-6)
        assert torch.equal(product(given.x[:count])[-1], product(given.x[count - 1 : count])[0]), count


def test_float32_products_of_split_numbers(amx: CpuOps) -> None:
    given = factors(100, 70, torch.float32)
    whole = amx.linear_batched(given.weight, given.bias)(given.x)
    torch.testing.assert_close(whole.double(), given.exact, atol=1e-6, rtol=1e-6)
    for count in COUNTS:
        assert torch.equal(amx.linear_batched(given.weight, given.bias)(given.x[:count]), whole[:count]), count


@pytest.mark.parametrize("heads", [(4, 4, 16), (14, 2, 64), (9, 3, 64)], ids=str)
def test_attention(amx: CpuOps, heads: tuple[int, int, int]) -> None:
    for lens, contexts in STEPS:
        case = Attention(lens, contexts, *heads, torch.bfloat16, 33)
        close(case.by(amx), expected(case))


class ExactLibrary:
    """A library whose steps are exact, as those of `--batch-invariant`."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def run(self, step: StepStruct, program: Any) -> None:
        step.exact = 1
        self._library.run(step, program)


@pytest.mark.parametrize("heads", [(8, 2, 32), (4, 4, 64), (24, 1, 32)], ids=str)
def test_exact_attention_is_the_same_for_each_token_alone(amx: CpuOps, heads: tuple[int, int, int]) -> None:
    exact = CpuOps(cast(Library, ExactLibrary(amx.library)))
    case = Attention((80,), (200,), *heads, torch.bfloat16)
    whole = case.by(exact)
    close(whole, expected(case))
    assert torch.equal(case.by(exact, *cut(case, SINGLE)), whole)


@pytest.mark.parametrize("tokens", [1, 7, 16, 40])
def test_adapters(amx: CpuOps, tokens: int) -> None:
    made = torch.Generator().manual_seed(0)
    update = LowRankUpdate(torch.randn(9, 70, generator=made) / 8, torch.randn(50, 9, generator=made) / 3)
    x = torch.randn(tokens, 70, generator=made).bfloat16()
    segments = Segments.from_uses([((0, 0.5),)], [tokens], "cpu")
    slots = amx.low_rank(70, [(0, 50)], 2, torch.bfloat16)
    slots.put(0, pack_all([(slots, [update])])[0][0])
    got = slots(torch.zeros(tokens, 50, dtype=torch.bfloat16), x, segments)
    want = F.linear(F.linear(x.double(), update.a.bfloat16().double()), update.b.bfloat16().double()) * 0.5
    assert (got.double() - want).abs().max() <= 0.02 * want.abs().max()
