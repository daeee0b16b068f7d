"""`bench profile` assigns every second of a step to one phase."""

from itertools import count

import pytest
from engine_rig import greedy, rig_of

from quire.errors import QuireError
from quire_bench.offline import submit
from quire_bench.profiling.roofline import TokenSpan
from quire_bench.profiling.step_profiler import StepProfiler, watch_jobs
from quire_bench.workload import BenchRequest

# --- phases ------------------------------------------------------------------------------------------


def ticking(engine):
    """A watch whose clock goes on by one whenever it is read."""
    ticks = count()
    return StepProfiler(engine, lambda: next(ticks))


def test_every_second_of_a_step_belongs_to_the_phase_it_passed_in(rig):
    watch = ticking(rig.engine)
    rig.add([1, 2, 3], greedy(1))
    with watch.on():
        step, deltas = watch.step()
    assert step.seconds == {"plan": 2, "layout": 1, "forward": 1, "logits": 1, "sample": 1, "commit": 1}
    assert step.spans == (TokenSpan(0, 3, True),)
    assert step.elapsed_s == 7
    assert len(deltas) == 1


def test_a_step_that_calls_the_model_for_each_token_lays_out_between_the_calls(folder):
    with rig_of(folder, batch_invariant=True, page_size=4) as rig:
        watch = ticking(rig.engine)
        rig.add([1, 2, 3], greedy(1))
        with watch.on():
            step, _ = watch.step()
    assert step.seconds == {"plan": 2, "layout": 3, "forward": 3, "logits": 1, "sample": 1, "commit": 1}


def test_a_step_that_samples_nothing_has_no_seconds_of_sampling(rig):
    watch = ticking(rig.engine)
    rig.add(range(20), greedy(1))  # steps are of 13 tokens
    with watch.on():
        step, _ = watch.step()
    assert step.spans == (TokenSpan(0, 13, False),)
    assert step.seconds["sample"] == 0


def test_watching_changes_no_answer_and_leaves_nothing_behind(rig):
    engine, prompts = rig.engine, [[1, 2, 3], list(range(20, 40)), [7]]
    expected = rig.tokens(prompts, greedy(5))
    engine.reset_prefix_cache()
    watch, got = StepProfiler(engine), {}
    ids = [rig.add(prompt, greedy(5)) for prompt in prompts]
    with watch.on():
        while engine.has_work:
            for delta in watch.step()[1]:
                got.setdefault(delta.request_id, []).extend(delta.token_ids)
    assert [got[request_id] for request_id in ids] == expected
    assert not {"plan", "commit"} & vars(engine._scheduler).keys()
    assert "launch" not in vars(engine._runner)
    assert not {"sample", "take"} & vars(engine._runner._sampler).keys()
    assert not engine.loaded.module._forward_hooks
    assert not engine.loaded.module._forward_pre_hooks


def test_a_watched_workload_computes_every_token_once(rig):
    work = [BenchRequest((1, 2, 3, 4, 5), 4), BenchRequest(tuple(range(30)), 2)]
    run = watch_jobs(rig.engine, lambda: submit(rig.engine, work, "x"))
    spans = [span for step in run.steps for span in step.spans]
    assert sum(span.length for span in spans) == (5 + 3) + (30 + 1)  # the last token is never computed
    assert sum(span.samples for span in spans) == 4 + 2
    assert all(step.seconds["forward"] > 0 for step in run.computing)
    assert sum(step.elapsed_s for step in run.steps) <= run.elapsed_s


def test_a_request_that_fails_ends_the_profile_with_its_error(rig):
    def refuse(*_):
        raise RuntimeError("no forward today")

    hook = rig.engine.loaded.module.register_forward_pre_hook(refuse)
    with pytest.raises(QuireError, match="no forward today"):
        watch_jobs(rig.engine, lambda: submit(rig.engine, [BenchRequest((1, 2), 2)], "x"))
    hook.remove()
