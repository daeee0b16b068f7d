"""Conformance of operations: every implementation against the reference, in float32 as the reference sees it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from quire.records import OpImpl, OpQuery
from quire.testing.demand import demand
from quire.testing.op_cases import CASES, WRITTEN, Case, Draw
from quire_kernels import reference

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""Largest difference, as a share of the largest value of the reference's answer."""


def check_op(
    impl: OpImpl, dtype: str = "float32", device: str = "cpu", features: frozenset[str] = frozenset(), seed: int = 0
) -> None:
    """An implementation gives what the reference gives, and changes none of the arguments it must not.

    dtype: of activations and weights; the implementation must support it on this device. features: of the
    device, as `OpQuery` has them.
    """
    demand(impl.op in CASES, f"{impl.op!r} is no operation; there are {', '.join(CASES)}.")
    reason = impl.supports(OpQuery(device=torch.device(device).type, dtype=dtype, features=features))
    demand(reason is None, f"{impl.name} does not support {dtype} on {device}: {reason}")
    kind: torch.dtype = getattr(torch, dtype)
    draw = Draw(kind, torch.device(device), torch.Generator().manual_seed(seed))
    ours, theirs = impl.load(), getattr(reference, impl.op)
    for number, case in enumerate(CASES[impl.op](draw)):
        expected = _answer(impl.op, theirs, copy.deepcopy(case))
        found = _answer(impl.op, ours, copy.deepcopy(case))
        again = _answer(impl.op, ours, copy.deepcopy(case))
        what = f"{impl.op}, case {number} ({_shapes(case)})"
        for a, b, c in zip(found, expected, again, strict=True):
            _compare(a, b, what, TOLERANCE[kind])
            demand(torch.equal(a, c), f"{what}: the same arguments give another answer the second time.")


def _answer(op: str, function: Any, case: Case) -> list[Tensor]:
    """What the op gives, returned or written into its arguments."""
    with torch.inference_mode():
        given = function(*case[:2])(case[2]) if op == "linear" else function(*case)
    returned = [] if given is None else list(given) if isinstance(given, tuple) else [given]
    return [*returned, *(case[place] for place in WRITTEN.get(op, ()))]


def _compare(found: Tensor, expected: Tensor, what: str, tolerance: float) -> None:
    demand(found.shape == expected.shape, f"{what}: shape {tuple(found.shape)}, not {tuple(expected.shape)}.")
    demand(found.dtype == expected.dtype, f"{what}: {found.dtype}, not {expected.dtype}.")
    if not expected.numel():
        return
    scale = expected.abs().max().clamp(min=1.0).float()
    worst = ((found.float() - expected.float()).abs().max() / scale).item()
    demand(worst <= tolerance, f"{what}: off by {worst:.2g} of the largest, more than {tolerance:.2g}.")


def _shapes(case: Case) -> str:
    return ", ".join(str(tuple(x.shape)) if isinstance(x, Tensor) else type(x).__name__ for x in case)
