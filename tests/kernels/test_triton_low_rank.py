"""The op `low_rank` in Triton, in its interpreter where there is no GPU: every case against the reference."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quire.records import OpImpl, OpQuery
from quire_kernels import reference_low_rank, select
from quire_kernels.low_rank import LowRankUpdate, Segments, pack_all
from quire_kernels.triton_gpu.ops import TritonOp
from quire_testing import check_op

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MODULE = "quire_kernels.triton_gpu.low_rank"


def imported(interpreted: bool) -> Iterator[Any]:
    """The module, anew: whether kernels are interpreted is decided when they are read.

    Triton's own functions are read first, as they are in a process that imported it for something else.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        importlib.import_module("triton.language")
        if interpreted:
            patch.setenv("TRITON_INTERPRET", "1")
        patch.delitem(sys.modules, MODULE, raising=False)
        yield importlib.import_module(MODULE)
        sys.modules.pop(MODULE, None)


@pytest.fixture
def low_rank() -> Iterator[Callable[..., Any]]:
    for module in imported(interpreted=DEVICE == "cpu"):
        yield module.low_rank


@pytest.fixture
def compiled() -> Iterator[Any]:
    yield from imported(interpreted=False)


@pytest.fixture
def sums_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter leaves products to numpy, whose BLAS sums a row otherwise in another place on some CPUs."""
    if DEVICE == "cpu":
        interpreter = importlib.import_module("triton.runtime.interpreter")

        def create_dot(_: Any, a: Any, b: Any, d: Any, *ignored: Any) -> Any:
            sums = np.einsum("ik,kn->in", a.data, b.data, dtype=d.data.dtype)
            return interpreter.TensorHandle(sums + d.data, d.dtype.scalar)

        monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


@pytest.mark.usefixtures("sums_in_order")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_token_is_the_same_alone_and_among_others_and_base_rows_stay(
    low_rank: Callable[..., Any], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    slices, uses, lens = [(0, 40), (40, 57)], [((0, 1.0),), (), ((1, 0.5), (0, 1.0)), ((0, 1.0),)], [3, 2, 19, 1]
    shares = [
        [LowRankUpdate(torch.randn(r, 70), torch.randn(40, r)), LowRankUpdate(scale=torch.randn(17))] for r in (5, 33)
    ]
    slots = low_rank(70, slices, 3, dtype, DEVICE)
    for slot, packed in enumerate(pack_all([(slots, share) for share in shares])[0]):
        slots.put(slot, packed)
    y, x = torch.randn(25, 57).to(DEVICE, dtype), torch.randn(25, 70).to(DEVICE, dtype)
    together = slots(y.clone(), x, Segments.from_uses(uses, lens, DEVICE))
    assert torch.equal(together[3:5], y[3:5])
    token = 0
    for use, count in zip(uses, lens, strict=True):
        for t in range(token, token + count):
            alone = slots(y[t : t + 1].clone(), x[t : t + 1], Segments.from_uses([use], [1], DEVICE))
            assert torch.equal(alone[0], together[t]), t
        token += count


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_it_conforms(low_rank: Callable[..., Any], dtype: str) -> None:
    check_op(OpImpl("mine", "low_rank", lambda _: None, lambda: low_rank), dtype, DEVICE)


def test_unused_slots_change_nothing_and_outputs_may_be_wider(low_rank: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    share, segments = (
        [LowRankUpdate(torch.randn(4, 8), torch.randn(6, 4))],
        Segments.from_uses([((1, 1.0),)], [3], DEVICE),
    )
    y, x = torch.randn(3, 6, device=DEVICE), torch.randn(3, 8).to(DEVICE, torch.bfloat16)
    found = []
    for make in (low_rank, reference_low_rank.low_rank):
        slots = make(8, [(0, 6)], 2, torch.bfloat16, DEVICE)
        assert torch.equal(slots(y.clone(), x, segments), y)
        slots.put(1, slots.pack(share))
        found.append(slots(y.clone(), x, segments))
        slots.clear(1)
        assert torch.equal(slots(y.clone(), x, segments), y)
    torch.testing.assert_close(*found, atol=2e-2, rtol=2e-2)


SIZES = {"TOKENS": 16, "RANKS": 16, "WIDE": False}
KERNELS: dict[str, dict[str, Any]] = {
    "_shrink": {"inputs": 576, "INPUTS": 64, **SIZES},
    "_expand": {"OUTPUTS": 64, "UNIT": 8, "HEAD": 2, "COLUMNS": 5, **SIZES},
}
POINTERS = {"h": "fp32", "tokens": "i32", "weights": "fp32", "blocks": "i32", "table": "i64", "slices": "i32"}


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compile_for_a_gpu_that_is_not_here(
    compiled: Any, name: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton
    from triton.backends.compiler import GPUTarget

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel, constants = getattr(compiled, name), KERNELS[name]
    pointers = {key: f"*{kind}" for key, kind in {**POINTERS, **dict.fromkeys(("x", "y", "kind"), dtype)}.items()}
    signature = {key: "constexpr" if key in constants else pointers.get(key, "i32") for key in kernel.arg_names}
    source = triton.compiler.ASTSource(fn=kernel, signature=signature, constexprs=constants)
    program = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    assert ("mma.sync" in program) == (dtype != "fp32"), "tensor cores, but for float32 which they would round"


def test_it_is_chosen_for_gpus_and_nowhere_else() -> None:
    impl = TritonOp("low_rank")
    assert impl.supports(OpQuery("cuda", "bfloat16")) is None
    assert "it is for GPUs" in str(impl.supports(OpQuery("cpu", "bfloat16")))
    chosen = {choice.op: choice for choice in select.choose(OpQuery("cuda", "bfloat16")).report}["low_rank"]
    assert chosen.name == "triton"
    chosen = {choice.op: choice for choice in select.choose(OpQuery("cpu", "bfloat16")).report}["low_rank"]
    assert [rejected.reason for rejected in chosen.rejected if rejected.name == "triton"]


def test_without_triton_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr("quire_kernels.triton_gpu.ops.find_spec", lambda name: None)
    chosen = {choice.op: choice for choice in select.choose(OpQuery("cuda", "bfloat16")).report}["low_rank"]
    assert {rejected.name: rejected.reason for rejected in chosen.rejected}["triton"] == "triton is not installed"
