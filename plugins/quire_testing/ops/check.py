"""Conformance of operations: an implementation is compared with the reference on the inputs of `cases`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from quire.records import OpImpl, OpQuery
from quire_kernels import reference
from quire_kernels.candidates.built_in import PLAIN
from quire_testing.ops.cases import BOUND, CASES, WRITTEN, Case, RandomInputs
from quire_testing.ops.low_rank_cases import run_low_rank
from quire_testing.ops.page_layouts import POOLS, layouts_of
from quire_testing.ops.state_cases import STATES
from quire_testing.require import require

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""Largest difference, relative to the largest value of the reference's result."""


def check_op(
    impl: OpImpl,
    dtype: str = "float32",
    device: str = "cpu",
    features: frozenset[str] = frozenset(),
    seed: int = 0,
    page_size: int = 16,
    stores: OpImpl | None = None,
) -> None:
    """The results equal those of the reference, and arguments that the operation may not change stay unchanged.

    dtype: of activations and weights; the implementation must support it on this device. features: of the
    device, as `OpQuery` has them. Cases with head dimensions that it does not support are left out. stores: the
    `write_kv` of the same page layout, needed if the layout is not plain and `impl` is not `write_kv` itself.
    """
    require(impl.op in CASES, f"{impl.op!r} is no operation; there are {', '.join(CASES)}.")
    query = OpQuery(torch.device(device).type, dtype, features, page_size)
    reason = impl.supports(query)
    require(reason is None, f"{impl.name} does not support {dtype} on {device}: {reason}")
    kind: torch.dtype = getattr(torch, dtype)
    draw = RandomInputs(kind, torch.device(device), torch.Generator().manual_seed(seed), page_size)
    mine = _Subject(impl.op, impl.load(), _writer(impl, stores))
    cases = CASES[impl.op]
    expected = _Expected.kept(impl.op, cases, kind, draw.device, seed, page_size)
    tried, reasons = 0, set()
    for number, case in enumerate(cases(draw)):
        if reason := impl.supports(replace(query, head_dims=_head_dims(impl.op, case))):
            reasons.add(reason)
            continue
        what = f"{impl.op}, case {number} ({_shapes(case)})"
        for a, b, c in zip(mine.answer(case), expected.answer(number, case), mine.answer(case), strict=True):
            _compare(a, b, what, TOLERANCE[kind])
            require(torch.equal(a, c), f"{what}: the same arguments have another result the second time.")
        tried += 1
    require(tried > 0, f"{impl.name} supports none of the cases: {'; '.join(reasons)}")


def _writer(impl: OpImpl, stores: OpImpl | None) -> Callable[..., Any] | None:
    """The `write_kv` for the layout of `impl`; None if that is plain."""
    if impl.op not in POOLS or impl.layout == PLAIN:
        return None
    writer = impl if impl.op == "write_kv" else stores
    if writer is None or writer.op != "write_kv" or writer.layout != impl.layout:
        raise AssertionError(f"{impl.name} has pages that are {impl.layout}: `stores` must be the write_kv of these.")
    return writer.load()


def _head_dims(op: str, case: Case) -> tuple[int, ...]:
    return (case[POOLS[op][0]].shape[-1],) if op in POOLS else ()


@dataclass(frozen=True)
class _Subject:
    """A callable operation; its page pools are plain unless it has a `writer`."""

    op: str
    function: Callable[..., Any]
    writer: Callable[..., Any] | None = None

    def answer(self, case: Case) -> list[Tensor]:
        """The results of the operation, returned or written into its arguments."""
        case = copy.deepcopy(case)
        with torch.inference_mode():
            if self.writer is None:
                return self._called(case)
            places = POOLS[self.op]
            layouts = layouts_of(self.writer, case[places[0]])
            pools = dict(zip(places, layouts, strict=True))
            case = tuple(pools[i].laid_out(x) if i in pools else x for i, x in enumerate(case))
            found = self._called(case)
            if self.op not in WRITTEN:
                return found
            return [*found[:-2], *(layout.plain(pool) for layout, pool in zip(layouts, found[-2:], strict=True))]

    def _called(self, case: Case) -> list[Tensor]:
        if self.op == "low_rank":
            return [run_low_rank(self.function, case)]
        bound = BOUND.get(self.op, 0)
        function = self.function(*case[:bound]) if bound else self.function
        given = function(*case[bound:])
        returned = [] if given is None else list(given) if isinstance(given, tuple) else [given]
        written = (*(POOLS[self.op] if self.op in WRITTEN else ()), *([STATES[self.op]] if self.op in STATES else ()))
        return [*returned, *(case[place] for place in written)]


class _Expected:
    """The reference's results on the cases of one seed."""

    def __init__(self, op: str) -> None:
        self._subject = _Subject(op, getattr(reference, op))
        self._answers: dict[int, list[Tensor]] = {}

    @classmethod
    @cache
    def kept(
        cls, op: str, cases: Any, dtype: torch.dtype, device: torch.device, seed: int, page_size: int
    ) -> _Expected:
        """Those that all implementations are compared with: the reference is slow. cases: what draws the cases."""
        return cls(op)

    def answer(self, number: int, case: Case) -> list[Tensor]:
        """Of the case with this number."""
        if number not in self._answers:
            self._answers[number] = self._subject.answer(case)
        return self._answers[number]


def _compare(found: Tensor, expected: Tensor, what: str, tolerance: float) -> None:
    require(found.shape == expected.shape, f"{what}: shape {tuple(found.shape)}, not {tuple(expected.shape)}.")
    require(found.dtype == expected.dtype, f"{what}: {found.dtype}, not {expected.dtype}.")
    infinite = expected.isinf()
    require(torch.equal(found[infinite], expected[infinite]), f"{what}: values that must be infinite are not.")
    found, expected = found[~infinite], expected[~infinite]
    if not expected.numel():
        return
    scale = expected.abs().max().clamp(min=1.0).float()
    worst = ((found.float() - expected.float()).abs().max() / scale).item()
    require(worst <= tolerance, f"{what}: off by {worst:.2g} of the largest, more than {tolerance:.2g}.")


def _shapes(case: Case) -> str:
    return ", ".join(str(tuple(x.shape)) if isinstance(x, Tensor) else type(x).__name__ for x in case)
