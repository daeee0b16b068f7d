"""Tables of `bench profile`: phases, steps beside their roof, operations."""

from contextlib import contextmanager

import pytest
import torch

from quire_bench.profiling.device_roofline import DeviceRoofline
from quire_bench.profiling.op_times import OpTime, times_of_model, times_of_torch
from quire_bench.profiling.roofline import Geometry, TokenSpan
from quire_bench.profiling.step_profiler import PHASES, ProfiledRun, TimedStep
from quire_bench.profiling.tables import phases, sizes

# --- tables ------------------------------------------------------------------------------------------


def step(*spans, forward=1.0, plan=0.0):
    return TimedStep(spans, {**dict.fromkeys(PHASES, 0.0), "forward": forward, "plan": plan})


def test_phases_are_of_the_steps_that_computed_and_add_up_to_the_run():
    run = ProfiledRun(
        [step(TokenSpan(0, 9, True), forward=5.0), step(TokenSpan(9, 1, True)), step(forward=0.0, plan=1.0)], 10.0
    )
    rows = {row.phase: row for row in phases(run)}
    assert (rows["forward"].mean_ms, rows["forward"].total_s, rows["forward"].share_percent) == (3000, 6.0, 60)
    assert (rows["plan"].mean_ms, rows["plan"].total_s) == (0, 1.0)
    assert (rows["step"].total_s, rows["between steps"].total_s) == (7.0, 3.0)
    assert sum(rows[name].share_percent for name in (*PHASES, "between steps")) == pytest.approx(100)


def test_steps_of_like_size_stand_beside_their_roof(rig):
    geometry, machine = Geometry.from_model(rig.engine.loaded), DeviceRoofline(1e6, 1e12)
    steps = [
        step(TokenSpan(0, 200, True)),
        step(TokenSpan(200, 1, True), forward=2.0),
        step(TokenSpan(201, 1, True), forward=4.0),
    ]
    one, many = sizes(ProfiledRun(steps, 7.0), geometry, machine)
    assert (one.tokens, one.steps, one.mean_ms, one.bound_by_reading) == ("1", 2, 3000, 2)
    read = sum(geometry.cost(step.spans).bytes for step in steps[1:])
    assert one.roof_share_percent == pytest.approx(100 * read / 1e6 / 6.0)
    assert one.read_gb_s == pytest.approx(read / 6.0 / 1e9)
    assert (many.tokens, many.steps) == ("129 to 512", 1)


# --- operations --------------------------------------------------------------------------------------


class Telling(torch.nn.Module):
    """A model that times its own operations."""

    ran = False

    @contextmanager
    def profile(self):
        model = self

        class Profile:
            def rows(self):
                assert model.ran
                return [("norm", 2, 0.5), ("linear", 4, 2.0, 8e9, 4e9)]

        yield Profile()


def test_a_model_that_times_its_operations_is_asked():
    model = Telling()

    def run():
        model.ran = True

    assert times_of_model(model, run) == [OpTime("linear", 4, 2.0, 8e9, 4e9), OpTime("norm", 2, 0.5)]
    assert times_of_model(torch.nn.Identity(), run) is None


def test_torch_tells_its_operations_the_longest_first():
    x = torch.ones(300, 300)
    ops, elapsed_s = times_of_torch(torch.device("cpu"), lambda: [x @ x, x @ x, x + 1])
    assert {op.name: op.calls for op in ops}["aten::mm"] == 2
    assert [op.seconds for op in ops] == sorted((op.seconds for op in ops), reverse=True)
    assert sum(op.seconds for op in ops) <= elapsed_s
