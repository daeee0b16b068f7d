"""argmax, draw and logprobs: every implementation, C++ for each instruction set that this machine has."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sampling_by_hand import kept_by_hand
from torch import Tensor

from quire.records import OpImpl, OpQuery
from quire.testing import check_op
from quire_kernels import reference, select, torch_ops
from quire_kernels.cpu import build, isa, library
from quire_kernels.cpu.sampling import CpuSampling

OPS = ("argmax", "draw", "logprobs")
PLAIN: dict[str, Any] = {
    "reference": reference,
    "torch": SimpleNamespace(argmax=reference.argmax, draw=torch_ops.draw, logprobs=torch_ops.logprobs),
}
COMPILED = {found.name: found for found in isa.available()} if build.compiler() else {}
SIZES = [1, 2, 15, 16, 17, 127, 128, 129, 1000, 8191, 8192, 8193, 20_000, 50_000]
"""Of vocabularies: about the widths of vectors, runs and pieces of the C++ ops."""


@pytest.fixture(params=[*PLAIN, *COMPILED])
def ops(request: pytest.FixtureRequest) -> Any:
    name = request.param
    return PLAIN[name] if name in PLAIN else CpuSampling(library.load(COMPILED[name]))


@pytest.fixture(params=COMPILED)
def compiled(request: pytest.FixtureRequest) -> CpuSampling:
    return CpuSampling(library.load(COMPILED[request.param]))


def normal(rows: int, vocab: int, spread: float = 3.0, seed: int = 0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def apart(vocab: int, step: float = 0.37, seed: int = 0) -> Tensor:
    """Logits [vocab] of which no two come closer than `step`, in any order."""
    return -step * torch.randperm(vocab, generator=torch.Generator().manual_seed(seed)).float()


def settings(
    rows: int,
    chance: Any = 0.5,
    temperature: Any = 1.0,
    top_k: Any = 0,
    top_p: Any = 1.0,
    min_p: Any = 0.0,
) -> tuple[np.ndarray, ...]:
    """Arguments of `draw` after the logits; a number stands for all rows."""
    kinds = ((temperature, float), (chance, float), (top_k, np.int64), (top_p, float), (min_p, float))
    return tuple(np.broadcast_to(np.asarray(value, kind), (rows,)).copy() for value, kind in kinds)


@pytest.mark.parametrize("op", OPS)
def test_every_implementation_is_the_reference(ops: Any, op: str) -> None:
    check_op(OpImpl("mine", op, lambda query: None, lambda: getattr(ops, op)))


# --- argmax ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", SIZES)
def test_the_largest_is_found_wherever_it_is_and_the_first_of_equals_is_taken(ops: Any, vocab: int) -> None:
    places = sorted({0, 1, vocab // 3, vocab // 2, vocab - 2, vocab - 1} & set(range(vocab)))
    logits = normal(len(places), vocab)
    for row, place in enumerate(places):
        logits[row, [place, vocab - 1]] = 100.0
    assert ops.argmax(logits).tolist() == places
    greedy = settings(len(places), 0.9, temperature=0.0, top_k=5, top_p=0.9, min_p=0.1)
    assert ops.draw(logits, *greedy).tolist() == places


@pytest.mark.parametrize("vocab", SIZES)
def test_nothing_is_chosen_where_nothing_is_finite_or_something_is_no_number(ops: Any, vocab: int) -> None:
    logits = normal(5, vocab)
    logits[0] = -torch.inf
    logits[1, vocab - 1] = torch.nan
    logits[2, vocab // 2] = torch.nan
    logits[3, vocab // 3] = torch.inf
    found = ops.argmax(logits).tolist()
    assert found == [-1, -1, -1, -1, int(logits[4].argmax())]
    for temperature in (0.0, 0.5, 1.0):
        drawn = ops.draw(logits, *settings(5, temperature=temperature, top_p=[1, 0.9, 1, 0.9, 0])).tolist()
        assert drawn == found


def test_rows_may_lie_apart(ops: Any) -> None:
    wide = normal(4, 3000)
    logits = wide[:, 100:2100]
    assert torch.equal(ops.argmax(logits), logits.contiguous().max(-1).indices)
    chance = [0.1, 0.4, 0.7, 0.99]
    assert torch.equal(ops.draw(logits, *settings(4, chance)), ops.draw(logits.contiguous(), *settings(4, chance)))
    tokens = torch.tensor([5, 6, 7, 8])
    for found, expected in zip(
        ops.logprobs(logits, tokens, 3), ops.logprobs(logits.contiguous(), tokens, 3), strict=True
    ):
        assert torch.equal(found, expected)
    assert torch.equal(ops.argmax(wide.T), wide.T.contiguous().max(-1).indices)


# --- drawing -----------------------------------------------------------------------------------------

FILTERS = [
    (1.0, 0, 1.0, 0.0),
    (0.5, 0, 1.0, 0.0),
    (2.0, 0, 1.0, 0.0),
    (1.0, 1, 1.0, 0.0),
    (1.0, 7, 1.0, 0.0),
    (1.0, 9999, 1.0, 0.0),
    (1.0, 0, 0.0, 0.0),
    (1.0, 0, 1e-6, 0.0),
    (1.0, 0, 0.7, 0.0),
    (1.0, 0, 0.999, 0.0),
    (1.0, 0, 1.0, 0.1),
    (1.0, 0, 1.0, 1.0),
    (2.0, 12, 0.9, 0.0),
    (2.0, 12, 0.9, 0.2),
    (0.7, 9999, 0.9, 0.001),
    (1.0, 5, 0.0, 0.0),
]
"""temperature, top_k, top_p, min_p"""


@pytest.mark.parametrize(("temperature", "top_k", "top_p", "min_p"), FILTERS)
@pytest.mark.parametrize("vocab", [50, 300, 9000])
def test_exactly_the_kept_tokens_are_drawn_each_in_the_middle_of_its_share(
    ops: Any, vocab: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = apart(vocab)
    kept = dict(sorted(kept_by_hand(logits, temperature, min(top_k, vocab), top_p, min_p).items()))
    share = np.array(list(kept.values()))
    middle = share.cumsum() - share / 2
    found = ops.draw(
        logits.expand(len(kept), -1), *settings(len(kept), middle, temperature, top_k, top_p, min_p)
    ).tolist()
    wide = share > 1e-5  # the others end within the tolerance of a chance
    assert np.array(found)[wide].tolist() == np.array(list(kept))[wide].tolist()
    assert set(found) <= set(kept)


@pytest.mark.parametrize("vocab", SIZES)
def test_chance_reaches_from_the_first_to_the_last_token_that_is_kept(ops: Any, vocab: int) -> None:
    logits = normal(4, vocab)
    kept = [sorted(kept_by_hand(row, 1.0, 0, 0.9, 0.0)) for row in logits]
    assert ops.draw(logits, *settings(4, 0.0, top_p=0.9)).tolist() == [ids[0] for ids in kept]
    assert ops.draw(logits, *settings(4, 1 - 2**-53, top_p=0.9)).tolist() == [ids[-1] for ids in kept]


@cache
def random_draws(spread: float, rows: int, implementation: str) -> tuple[Tensor, tuple[np.ndarray, ...], Tensor]:
    """Logits, all kinds of settings, and what is drawn."""
    random = np.random.default_rng(0)
    logits = normal(4, 3000, spread, seed=1).repeat(rows // 4, 1)
    kinds = random.integers(0, 4, rows)
    arguments = settings(
        rows,
        random.random(rows),
        random.choice([0.3, 1.0, 1.7], rows),
        np.where(kinds == 1, random.choice([1, 2, 23, 24, 25, 40, 100, 1500, 2999, 4000], rows), 0),
        np.where(kinds >= 2, random.random(rows), 1.0),
        np.where(kinds == 3, 0.02, 0.0),
    )
    return logits, arguments, PLAIN[implementation].draw(logits, *arguments)


SPREADS = [0.0, 0.01, 0.5, 3.0, 12.0]


@pytest.mark.parametrize("spread", SPREADS)
def test_random_draws_in_torch_are_those_of_the_reference(spread: float) -> None:
    logits, arguments, expected = random_draws(spread, 400, "reference")
    assert torch_ops.draw(logits, *arguments).tolist() == expected.tolist()


@pytest.mark.parametrize("spread", SPREADS)
def test_random_draws_in_cpp_are_those_in_torch(compiled: CpuSampling, spread: float) -> None:
    logits, arguments, expected = random_draws(spread, 3000, "torch")
    assert (compiled.draw(logits, *arguments) == expected).double().mean().item() > 0.999


def test_equals_at_a_threshold_are_kept_together(ops: Any) -> None:
    logits = torch.full((1, 3000), -9.0)
    logits[0, 10], logits[0, [20, 700, 701, 2999]] = 5.0, 4.0
    chance = (np.arange(1000) + 0.5) / 1000
    for filters in ({"top_k": 2}, {"top_k": 5}, {"top_p": 0.5}, {"top_k": 3, "top_p": 0.8}, {"min_p": 0.3}):
        drawn = ops.draw(logits.expand(1000, -1), *settings(1000, chance, **filters)).tolist()
        assert set(drawn) == {10, 20, 700, 701, 2999}, filters
    assert set(ops.draw(logits.expand(1000, -1), *settings(1000, chance, top_k=2, top_p=0.3)).tolist()) == {10}


@pytest.mark.parametrize("vocab", [2, 129, 20_000])
@pytest.mark.parametrize(
    "filters", [{}, {"top_p": 0.5}, {"top_k": 10}, {"min_p": 0.5}, {"top_k": 10_000, "top_p": 0.1}]
)
def test_a_flat_distribution_stays_flat(ops: Any, vocab: int, filters: dict[str, Any]) -> None:
    chance = np.array([0.0, 0.1, 0.5, 0.95, 1 - 2**-53])
    drawn = ops.draw(torch.zeros(5, vocab), *settings(5, chance, **filters))
    assert drawn.tolist() == np.floor(chance * vocab).astype(int).tolist()


@pytest.mark.parametrize("vocab", [1, 3, 129, 20_000])
def test_a_token_that_alone_is_possible_is_drawn(ops: Any, vocab: int) -> None:
    logits = torch.full((4, vocab), -torch.inf)
    places = [0, vocab // 2, vocab - 1, vocab // 3]
    logits[range(4), places] = torch.tensor([-3e38, 0.0, 3e38, 1e-40])
    drawn = ops.draw(
        logits, *settings(4, [0, 0.3, 0.6, 1 - 2**-53], 1.3, [0, 3, 0, 9], [1, 0.9, 0, 0.5], [0, 0, 0.5, 1])
    )
    assert drawn.tolist() == places


@pytest.mark.parametrize("temperature", [1e-2, 1e-6, 1e-38, 1e-45, 5e-324])
def test_a_very_cold_row_takes_the_largest(ops: Any, temperature: float) -> None:
    logits = apart(9000, step=3.0)[None]
    for filters in ({}, {"top_p": 0.9}, {"top_k": 40}, {"min_p": 0.1}):
        assert ops.draw(logits, *settings(1, 0.9, temperature, **filters)).tolist() == [int(logits.argmax())]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_row_draws_the_same_in_any_batch_with_any_threads(ops: Any, threads: Any, count: int) -> None:
    rows, vocab, random = 24, 50_000, np.random.default_rng(3)
    logits = (normal(rows, vocab) * 8).round() / 8  # with ties
    arguments = settings(
        rows,
        random.random(rows),
        random.choice([0.0, 0.005, 0.7, 1.0], rows),
        random.choice([0, 50, 3000], rows),
        random.choice([1.0, 0.9, 0.3], rows),
        random.choice([0.0, 0.01], rows),
    )
    threads(1)
    expected = torch.cat([ops.draw(logits[r : r + 1], *(each[r : r + 1] for each in arguments)) for r in range(rows)])
    threads(count)
    assert torch.equal(ops.draw(logits, *arguments), expected)
    assert torch.equal(ops.draw(logits[5:8], *(each[5:8] for each in arguments)), expected[5:8])
    for r in range(0, rows, 5):
        assert torch.equal(ops.draw(logits[r : r + 1], *(each[r : r + 1] for each in arguments)), expected[r : r + 1])


def test_the_logits_are_left_as_they_are(ops: Any) -> None:
    logits = normal(3, 5000)
    before = logits.clone()
    ops.argmax(logits)
    ops.draw(logits, *settings(3, temperature=[0.0, 1e-9, 1.0], top_p=0.9, top_k=7))
    ops.logprobs(logits, torch.tensor([1, 2, 3]), 4)
    assert torch.equal(logits, before)


def test_settings_must_be_one_for_each_row(compiled: CpuSampling) -> None:
    with pytest.raises(ValueError, match="3 rows, but settings of shapes"):
        compiled.draw(normal(3, 10), *settings(2))


# --- log-probabilities ---------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", SIZES)
@pytest.mark.parametrize("top", [0, 1, 20, 10**6])
def test_the_token_its_rank_and_the_most_likely_ones_are_reported(ops: Any, vocab: int, top: int) -> None:
    logits = (normal(3, vocab) * 8).round() / 8  # with ties
    tokens = torch.tensor([0, vocab // 2, vocab - 1])
    own, rank, ids, values = ops.logprobs(logits, tokens, top)
    every = torch.log_softmax(logits.double(), -1).float()
    torch.testing.assert_close(own, every[range(3), tokens], atol=1e-5, rtol=1e-6)
    for r in range(3):
        row = logits[r].tolist()
        assert ids[r].tolist() == sorted(range(vocab), key=lambda i, row=row: (-row[i], i))[:top]
        assert rank[r].item() == 1 + int((logits[r] > logits[r, tokens[r]]).sum())
    torch.testing.assert_close(values, every.gather(-1, ids), atol=1e-5, rtol=1e-6)
    assert values.shape == ids.shape == (3, min(top, vocab))


@pytest.mark.parametrize("top", [1, 5, 129, 3000])
def test_of_equals_the_first_are_reported(ops: Any, top: int) -> None:
    logits = torch.zeros(2, 3000)
    logits[1, [2500, 40]] = 1.0
    _, rank, ids, _ = ops.logprobs(logits, torch.tensor([9, 9]), top)
    assert rank.tolist() == [1, 3]
    assert ids[0].tolist() == list(range(top))
    rest = [i for i in range(3000) if i not in (40, 2500)]
    assert ids[1].tolist() == [40, 2500, *rest][:top]


def test_what_is_impossible_has_no_probability(ops: Any) -> None:
    logits = torch.full((1, 500), -torch.inf)
    logits[0, [3, 100]] = torch.tensor([1.0, 1.0])
    own, rank, ids, values = ops.logprobs(logits, torch.tensor([7]), 4)
    assert (own.tolist(), rank.tolist()) == ([-torch.inf], [3])
    assert ids.tolist() == [[3, 100, 0, 1]]
    torch.testing.assert_close(values, torch.tensor([[-np.log(2), -np.log(2), -np.inf, -np.inf]]).float())


@pytest.mark.parametrize("vocab", [5, 500, 50_000])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_no_distribution_reports_no_numbers_and_the_others_do(ops: Any, vocab: int, wrong: float) -> None:
    logits = normal(3, vocab)
    if wrong == -torch.inf:
        logits[1] = wrong
    else:
        logits[1, vocab - 1] = wrong
    own, _, ids, values = ops.logprobs(logits, torch.tensor([1, 1, 1]), 3)
    assert own.isnan().tolist() == [False, True, False]
    assert values.isnan().all(-1).tolist() == [False, True, False]
    assert ((ids >= 0) & (ids < vocab)).all()


def test_a_row_reports_the_same_bits_in_any_batch_with_any_threads(ops: Any, threads: Any) -> None:
    rows, vocab = 12, 50_000
    logits, tokens = normal(rows, vocab), torch.arange(rows) * 17
    threads(1)
    alone = [ops.logprobs(logits[r : r + 1], tokens[r : r + 1], 7) for r in range(rows)]
    expected = [torch.cat(parts) for parts in zip(*alone, strict=True)]
    for count in (1, 2, 3):
        threads(count)
        for found, want in zip(ops.logprobs(logits, tokens, 7), expected, strict=True):
            assert torch.equal(found, want)
        for found, want in zip(ops.logprobs(logits[4:5], tokens[4:5], 7), expected, strict=True):
            assert torch.equal(found, want[4:5])
        larger = ops.logprobs(logits, tokens, 20)
        assert torch.equal(larger[3][:, :7], expected[3]), "however many others want"


def test_a_token_beyond_the_vocabulary_is_an_error(compiled: CpuSampling) -> None:
    for token in (-1, 10):
        with pytest.raises(IndexError, match="tokens must be from 0 to 9"):
            compiled.logprobs(normal(2, 10), torch.tensor([3, token]), 2)


# --- selection ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not COMPILED, reason="needs a C++ compiler and AVX2")
@pytest.mark.parametrize("query", [OpQuery("cpu", "float16"), OpQuery("cpu", "bfloat16", page_size=5, head_dims=(3,))])
def test_on_a_cpu_they_are_compiled_whatever_the_model_is_like(query: OpQuery) -> None:
    names = {choice.op: choice.name for choice in select.choose(query).report}
    assert {names[op] for op in OPS} == {f"cpp-{next(iter(COMPILED))}"}


def test_elsewhere_they_are_torch() -> None:
    chosen = select.choose(OpQuery("cuda", "bfloat16"))
    names = {choice.op: choice.name for choice in chosen.report}
    assert [names[op] for op in OPS] == ["reference", "torch", "torch"]
    assert chosen.draw is torch_ops.draw
