"""Programs with adapters against the same blocks run one by one, and against steps without adapters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiled_rig import RECORDED, decoder_of, model_of
from torch import Tensor, nn

from quire_kernels.cpu import build, isa
from quire_kernels.cpu.compiled.blocks import CompiledBlocks
from quire_kernels.cpu.compiled.program import Program
from quire_kernels.cpu.structs import Op
from quire_kernels.low_rank import LowRankUpdate, Segments, pack_all
from quire_models.modules.blocks import DecoderModel
from quire_models.modules.projection import Projection
from quire_models.testing import ChunkSpec, ModelDriver

pytestmark = pytest.mark.skipif(not (isa.available() and build.compiler()), reason="the C++ ops cannot be compiled")
DTYPES = ["float32", "bfloat16"]
SLOTS = 4
LENS = (20, 7, 1, 33, 9)
STEPS = ([5, 7, 1, 30, 4], [14, 0, 0, 1, 1], [1, 0, 0, 2, 4])
"""Tokens of each seq in each step."""

USES = [((0, 1.0),), (), ((1, 1.0),), ((2, 0.5), (0, 1.5)), ((0, 1.0),)]


def change(projection: Projection, slots: Any, runtime_index: int | None) -> None:
    before = projection.delta

    def delta(y: Tensor, x: Tensor, adapters: Any) -> Tensor:
        if before is not None:
            y = before(y, x, adapters)
        if runtime_index is None:
            return slots(y, x, adapters)
        return slots(y, x, adapters[runtime_index]) if runtime_index in adapters else y

    projection.delta = delta


def attach(model: nn.Module, runtime_index: int | None = None, seed: int = 0) -> list[tuple[Any, list[list[Any]]]]:
    """Adapter slots on all projections of the blocks, and the updates of three adapters of different ranks."""
    made = torch.Generator().manual_seed(seed)
    found = []
    for path, module in model.named_modules():
        if isinstance(module, Projection) and path.startswith("blocks"):
            slices = [(part.start, part.stop) for part in module.slices.values()] or [(0, module.outputs)]
            slots = model.ops.low_rank(module.inputs, slices, SLOTS, next(model.parameters()).dtype)
            change(module, slots, runtime_index)
            shares = [
                [
                    LowRankUpdate(
                        torch.randn(rank, module.inputs, generator=made) / module.inputs**0.5,
                        torch.randn(stop - start, rank, generator=made) / rank**0.5,
                        torch.rand(stop - start, generator=made) + 0.5 if rank == 3 else None,
                    )
                    for start, stop in slices
                ]
                for rank in (8, 3, 40)
            ]
            found.append((slots, shares))
    return found


def put_all(found: list[tuple[Any, list[list[Any]]]]) -> None:
    for slot in range(3):
        packed, _ = pack_all([(slots, shares[slot]) for slots, shares in found])
        for (slots, _), share in zip(found, packed, strict=True):
            slots.put(slot, share)


def run_steps(model: DecoderModel, case_id: str, bind: Any) -> list[Tensor]:
    """Hidden states of every token; `bind` makes `ForwardBatch.adapters` of (which seqs, lens)."""
    made = torch.Generator().manual_seed(1)
    seqs = [torch.randint(0, 60, (count,), generator=made).tolist() for count in LENS]
    driver = ModelDriver(model, decoder_of(case_id), seqs)
    found = []
    for counts in STEPS:
        present = [i for i, count in enumerate(counts) if count]
        fwd = driver.forward([ChunkSpec(i, counts[i]) for i in present])
        fwd.adapters = bind(present, [counts[i] for i in present])
        found += [rows.clone() for rows in model(fwd).split([counts[i] for i in present])]
    return found


def segments(present: list[int], lens: list[int]) -> Segments:
    return Segments.from_uses([USES[i] for i in present], lens)


def no_adapters(present: list[int], lens: list[int]) -> None:
    return None


def pieces_with_adapters(model: DecoderModel, several: bool = False) -> list[str]:
    run = model._run
    assert isinstance(run, CompiledBlocks)
    return ["program" if isinstance(piece, Program) else "block" for piece in run._adapted_stages[several]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case_id", [*RECORDED, "mixtral"])
def test_programs_with_adapters_give_what_the_blocks_give_one_by_one(case_id: str, dtype: str) -> None:
    found = []
    with torch.inference_mode():
        for recorded in (True, False):
            model = model_of(case_id, dtype, recorded)
            put_all(attach(model))
            found.append(run_steps(model, case_id, segments))
            if recorded and case_id != "mixtral":
                assert pieces_with_adapters(model) == ["program"]
    joined = dtype == "bfloat16" and isa.available()[0].tiles  # outputs are rounded once, not before and after adapters
    for mine, theirs in zip(*found, strict=True):
        assert mine.isfinite().all()
        assert (mine - theirs).abs().max() <= (0.03 * theirs.abs().max() if joined else 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_the_base_model_are_the_same_as_in_steps_without_adapters(dtype: str) -> None:
    model = model_of("llama", dtype, True)
    with torch.inference_mode():
        put_all(attach(model))
        plain = run_steps(model, "llama", no_adapters)
        mixed = run_steps(model, "llama", segments)
    users = [i for counts in STEPS for i, count in enumerate(counts) if count]
    assert {i for i in users if not USES[i]}
    for i, mine, theirs in zip(users, mixed, plain, strict=True):
        assert torch.equal(mine, theirs) == (not USES[i]), i


def test_adapters_may_come_and_go_after_the_program_was_written() -> None:
    model = model_of("llama", "bfloat16", True)
    with torch.inference_mode():
        found = attach(model)
        plain = run_steps(model, "llama", no_adapters)
        empty = run_steps(model, "llama", segments)
        assert all(map(torch.equal, empty, plain))
        put_all(found)
        adapter_slots = run_steps(model, "llama", segments)
        assert not any(map(torch.equal, adapter_slots[2:4], plain[2:4]))
        for slots, _ in found:
            for slot in range(3):
                slots.clear(slot)
        assert all(map(torch.equal, run_steps(model, "llama", segments), plain))
        put_all(found)
        assert all(map(torch.equal, run_steps(model, "llama", segments), adapter_slots))


@pytest.mark.parametrize("runtimes", [(0,), (1,), (0, 1), ()])
def test_each_runtime_changes_outputs_with_its_own_segments_and_some_are_absent(runtimes: tuple[int, ...]) -> None:
    def bind(present: list[int], lens: list[int]) -> dict[int, Segments]:
        uses_of = {0: [USES[i] for i in present], 1: [USES[(i + 1) % len(USES)] for i in present]}
        return {runtime_index: Segments.from_uses(uses_of[runtime_index], lens) for runtime_index in runtimes}

    found = []
    with torch.inference_mode():
        for recorded in (True, False):
            model = model_of("qwen2", "float32", recorded)
            put_all([share for runtime_index in (0, 1) for share in attach(model, runtime_index, seed=runtime_index)])
            if recorded:
                run_steps(model, "qwen2", lambda present, lens: {1: segments(present, lens)})
                assert pieces_with_adapters(model, several=True) == ["program"]
            found.append(run_steps(model, "qwen2", bind))
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine, theirs)


def test_what_is_bound_and_no_segments_runs_block_by_block() -> None:
    model = model_of("llama", "float32", True)
    seen: list[type] = []
    projection = next(module for module in model.modules() if isinstance(module, Projection))

    def delta(y: Any, x: Any, adapters: Any) -> Any:
        seen.append(type(y))
        return y

    with torch.inference_mode():
        projection.delta = delta
        plain = run_steps(model, "llama", no_adapters)
        assert not seen
        for bound in (object(), {0: object()}, {0: Segments.from_uses([], []), 1: object()}):
            seen.clear()
            got = run_steps(model, "llama", lambda present, lens, bound=bound: bound)
            assert seen == [Tensor] * len(STEPS)
            assert all(map(torch.equal, got, plain))


def test_a_delta_that_cannot_be_recorded_leaves_its_block_as_it_is() -> None:
    found = []
    with torch.inference_mode():
        for recorded in (True, False):
            model = model_of("llama", "float32", recorded)
            put_all(attach(model))
            projection = model.blocks[0].attn.o
            before = projection.delta
            projection.delta = lambda y, x, adapters, before=before: before(y, x, adapters) + torch.tanh(y)
            found.append(run_steps(model, "llama", segments))
            if recorded:
                assert pieces_with_adapters(model) == ["block", "program"]
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine, theirs)


def test_an_activation_is_not_joined_to_a_product_that_adapters_change() -> None:
    model = model_of("llama", "float32", True)
    with torch.inference_mode():
        put_all(attach(model))
        run_steps(model, "llama", segments)
        run = model._run
        assert isinstance(run, CompiledBlocks)
        for pieces, joined in ((run.stages, True), (run._adapted_stages[False], False)):
            ops = [instruction.op for piece in pieces for instruction in piece._code]
            assert (Op.GATED_ACT in ops) != joined
            assert (Op.LOW_RANK in ops) != joined


def test_operations_with_adapters_are_timed() -> None:
    model = model_of("llama", "float32", True)
    with torch.inference_mode():
        put_all(attach(model))
        run_steps(model, "llama", segments)
        with model.profile() as times:
            run_steps(model, "llama", segments)
            counts = {row.name: row.calls for row in times.rows()}
    projections = [m for path, m in model.named_modules() if isinstance(m, Projection) and path.startswith("blocks")]
    assert counts["low_rank"] == len(STEPS) * len(projections)


def test_slots_of_another_shape_are_not_compiled() -> None:
    model = model_of("llama", "float32", True)
    narrow = model.ops.low_rank(8, [(0, 8)], SLOTS, torch.float32)
    projection = model.blocks[1].attn.o
    with torch.inference_mode():
        projection.delta = narrow
        with pytest.raises(ValueError, match="expected y"):
            run_steps(model, "llama", segments)
        assert pieces_with_adapters(model) == ["program", "block", "program"]


def test_steps_of_other_thread_counts_use_the_same_segments(threads: Any) -> None:
    model = model_of("llama", "float32", True)
    found = []
    with torch.inference_mode():
        put_all(attach(model))
        for count in (1, 2, 3):
            threads(count)
            found.append(run_steps(model, "llama", segments))
    assert all(map(torch.equal, found[0], found[1]))
    assert all(map(torch.equal, found[0], found[2]))
