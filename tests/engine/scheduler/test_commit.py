"""What a step's result does: endings, errors, aborts, and what the deltas say."""

import pytest
from scheduler_invariants import check_scheduler
from scheduler_rig import EOS, Rig, ScriptedRunner, commit_with

from quire.engine.sampling.not_finite import NOT_FINITE
from quire.errors import NotFound
from quire.params.sampling import BeamSearchParams
from quire.records import Draft
from quire.types import AcceptedDrafts, Sample, StepResult, TokenLogprobs


def scripted(tokens, params, **rig_options):
    """Run one request whose seq samples these tokens; the rig and its last delta."""
    rig = Rig(runner=ScriptedRunner, **rig_options)
    rig.runner.script[0] = [token if isinstance(token, Sample) else Sample(token) for token in tokens]
    rig.add([1, 2], params)
    rig.run()
    return rig, rig.last("r0")


@pytest.mark.parametrize(
    ("tokens", "params", "output", "reason", "stop"),
    [
        ([7, EOS], {"ignore_eos": False}, [7, EOS], "stop", None),
        ([7, EOS, 7, 7], {}, [7, EOS, 7, 7], "length", None),
        ([7, 9], {"stop_token_ids": [9, 8]}, [7, 9], "stop", 9),
        ([EOS], {"stop_token_ids": [EOS]}, [EOS], "stop", EOS),
        ([9, EOS, 7, 9], {"stop_token_ids": [9], "min_tokens": 3, "ignore_eos": False}, [9, EOS, 7, 9], "stop", 9),
        ([7, 7], {"max_tokens": 2}, [7, 7], "length", None),
        ([7, EOS], {"max_tokens": 2, "ignore_eos": False}, [7, EOS], "stop", None),
        ([7, Sample(8, constraint_done=True)], {}, [7, 8], "stop", None),
        ([], {"max_tokens": 0}, [], "length", None),
        ([7, Sample(8, jump_forward_ids=(1, 2)), 3], {"max_tokens": 5}, [7, 8, 1, 2, 3], "length", None),
        ([Sample(8, jump_forward_ids=(1, 2, 3))], {"max_tokens": 3}, [8, 1, 2], "length", None),
        ([Sample(8, jump_forward_ids=(1, 2), constraint_done=True)], {"max_tokens": 3}, [8, 1, 2], "stop", None),
        ([Sample(8, jump_forward_ids=(1, 2), constraint_done=True)], {"max_tokens": 2}, [8, 1], "length", None),
        ([Sample(8, jump_forward_ids=(1, 9, 3))], {"stop_token_ids": [9]}, [8, 1, 9], "stop", 9),
        ([Sample(9, jump_forward_ids=(1, 9, 3))], {"stop_token_ids": [9], "min_tokens": 2}, [9, 1, 9], "stop", 9),
    ],
)
def test_a_seq_ends_when_and_why_it_should(tokens, params, output, reason, stop):
    rig, last = scripted(tokens, params)
    assert rig.output("r0") == output
    assert (last.finish_reason, last.stop_reason) == (reason, stop)


def test_the_context_ends_what_nothing_else_ends():
    rig, last = scripted([7] * 9, {"max_tokens": None}, max_model_len=6)
    assert (rig.output("r0"), last.finish_reason) == ([7] * 4, "length")
    rig, last = scripted([7] * 9, {"max_tokens": 100}, max_model_len=6)
    assert (rig.output("r0"), last.finish_reason) == ([7] * 4, "length")


def test_logprobs_are_reported_on_request_and_summed_at_the_end():
    samples = [Sample(7, TokenLogprobs(7, -0.5, 1)), Sample(8, TokenLogprobs(8, -1.0, 2))]
    rig, last = scripted(samples, {"max_tokens": 2, "logprobs": 1})
    assert [delta.logprobs[0].token_id for delta in rig.deltas] == [7, 8]
    assert [delta.cumulative_logprob for delta in rig.deltas] == [None, -1.5]
    rig, last = scripted(samples, {"max_tokens": 2})
    assert (last.logprobs, last.cumulative_logprob) == (None, -1.5)
    _, last = scripted([7, 8], {"max_tokens": 2})
    assert last.cumulative_logprob is None


@pytest.mark.parametrize(("interval", "lengths"), [(1, [1] * 7), (3, [1, 3, 3]), (4, [1, 4, 2]), (100, [1, 6])])
def test_deltas_have_stream_interval_tokens_except_the_first_and_the_last(interval, lengths):
    samples = [Sample(token, TokenLogprobs(token, -token / 10, 1)) for token in range(7)]
    rig, last = scripted(samples, {"max_tokens": 7, "logprobs": 1, "stream_interval": interval})
    assert [len(delta.token_ids) for delta in rig.deltas] == lengths
    assert [[entry.token_id for entry in delta.logprobs] for delta in rig.deltas] == [
        list(delta.token_ids) for delta in rig.deltas
    ]
    assert (rig.output("r0"), last.finish_reason) == (list(range(7)), "length")


def test_forced_tokens_are_in_the_delta_of_the_token_before_them():
    samples = [Sample(1, jump_forward_ids=(2, 3)), Sample(4), Sample(5, jump_forward_ids=(6,)), Sample(7)]
    rig, _ = scripted(samples, {"max_tokens": 7})
    assert [delta.token_ids for delta in rig.deltas] == [(1, 2, 3), (4,), (5, 6), (7,)]
    assert rig.stats().num_generated_tokens_total == 7
    rig, _ = scripted(samples, {"max_tokens": 7, "stream_interval": 3})
    assert [delta.token_ids for delta in rig.deltas] == [(1, 2, 3), (4, 5, 6), (7,)]


def test_tokens_held_back_before_a_preemption_are_reported_after_it():
    rig = Rig(num_pages=6, page_size=2, caching=False)
    for _ in range(2):
        rig.add([1, 2, 3, 4], {"max_tokens": 7, "stream_interval": 5})
    rig.run()
    assert rig.stats().num_preemptions_recompute_total
    for name in ("r0", "r1"):
        assert [len(delta.token_ids) for delta in rig.deltas if delta.request_id == name] == [1, 5, 1]


def test_only_the_first_delta_tells_of_the_prompt():
    rig = Rig()
    rig.add([1, 2], {"n": 2, "prompt_logprobs": 0, "max_tokens": 2})
    rig.run()
    assert [delta.num_cached_tokens for delta in rig.deltas] == [0, None, None, None]
    assert [delta.prompt_logprobs is None for delta in rig.deltas] == [False, True, True, True]


def test_scoring_a_prompt_generates_nothing():
    rig = Rig()
    rig.add(range(1, 6), {"n": 2, "prompt_logprobs": 0, "max_tokens": 0})
    rig.run()
    assert [(delta.index, delta.token_ids, delta.finish_reason) for delta in rig.deltas] == [
        (0, (), "length"),
        (1, (), "length"),
    ]
    assert [entry and entry.token_id for entry in rig.deltas[0].prompt_logprobs] == [None, 2, 3, 4, 5]


def test_a_plugin_that_fails_on_one_row_ends_its_request_and_no_other():
    rig = Rig(runner=ScriptedRunner)
    rig.add([1, 2], {"n": 2})
    rig.add([3, 4])
    rig.step()
    rig.runner.script[2] = [Sample(-1, error=("PluginFailed", "processor x: boom"))]
    rig.run()
    assert [rig.last("r0", index).error for index in (0, 1)] == [("PluginFailed", "processor x: boom")] * 2
    assert rig.last("r0").finish_reason == "error"
    assert rig.output("r1") == [5] * 4


def test_a_request_that_cannot_be_served_is_ended_with_the_reason():
    rig = Rig(try_admit=lambda request: NotFound("The adapter is gone."))
    rig.add([1, 2], {"n": 2})
    deltas = rig.step()
    assert [(d.index, d.finish_reason, d.error) for d in deltas] == [
        (index, "error", ("NotFound", "The adapter is gone.")) for index in (0, 1)
    ]
    assert not rig.scheduler.has_work


@pytest.mark.parametrize("when", ["waiting", "running", "in flight", "swapped"])
def test_a_request_can_be_aborted_at_any_time(when):
    rig = Rig(num_pages=6, page_size=2, host_pages=6, caching=False)
    rig.add([1, 2, 3, 4], {"max_tokens": 8})
    if when == "waiting":
        rig.step(max_tokens=1)
    rig.add([5, 6, 7, 8], {"max_tokens": 8})
    plan = None
    if when == "running":
        rig.step()
    if when == "in flight":
        plan = rig.scheduler.plan()
    while when == "swapped" and not rig.stats().num_swapped:
        rig.step()
    (delta,) = rig.scheduler.abort("r1")
    assert (delta.request_id, delta.finish_reason) == ("r1", "abort")
    assert rig.scheduler.abort("r1") == []
    if plan is not None:
        commit_with(rig, plan, {chunk.seq_id: Sample(5) for chunk in plan.chunks})
    check_scheduler(rig.scheduler)
    rig.run()
    assert set(rig.order()) == {"r0"}
    assert not rig.runner.rows


def test_one_answer_of_several_can_be_aborted():
    rig = Rig()
    rig.add(range(6), {"n": 3})
    rig.step()
    rig.step()
    assert [d.index for d in rig.scheduler.abort("r0", 1)] == [1]
    assert rig.scheduler.abort("r0", 1) == rig.scheduler.abort("r0", 7) == rig.scheduler.abort("x", 0) == []
    rig.run()
    assert [len(rig.output("r0", index)) for index in range(3)] == [4, 1, 4]


@pytest.mark.parametrize("gone", [[0], [1], [0, 2], [2, 1]])
def test_answers_can_be_aborted_before_they_have_begun(gone):
    whole = Rig()
    whole.add(range(6), {"n": 3, "seed": 1})
    whole.run()
    rig = Rig()
    rig.add(range(6), {"n": 3, "seed": 1})
    rig.step(max_tokens=2)
    for index in gone:
        assert [(d.index, d.finish_reason) for d in rig.scheduler.abort("r0", index)] == [(index, "abort")]
        assert rig.scheduler.abort("r0", index) == []
    rig.run()
    for index in range(3):
        assert rig.output("r0", index) == ([] if index in gone else whole.output("r0", index))


def test_aborting_the_last_answer_ends_the_request():
    rig = Rig()
    rig.add(range(6), {"n": 2})
    rig.step(max_tokens=2)
    rig.scheduler.abort("r0", 0)
    rig.scheduler.abort("r0", 1)
    rig.step()
    assert not rig.scheduler.has_work


def test_beams_are_aborted_together():
    rig = Rig()
    rig.add(range(6), BeamSearchParams(beam_width=3, max_tokens=5))
    rig.step()
    assert [(d.index, d.finish_reason) for d in rig.scheduler.abort("r0", 1)] == [(i, "abort") for i in range(3)]
    rig.step()
    assert not rig.scheduler.has_work


def test_a_missing_sample_is_our_own_fault_and_loud():
    rig = Rig()
    rig.add([1, 2])
    with pytest.raises(KeyError):
        rig.scheduler.commit(rig.scheduler.plan(), StepResult({}))


def test_seeds_differ_between_answers_and_requests_but_not_between_runs():
    def seeds(**params):
        rig = Rig(seed=7)
        for _ in range(2):
            rig.add([1], {"n": 2, "max_tokens": 1} | params)
        rig.run()
        return [start.seed for plan in rig.plans for start in plan.started]

    assert len(set(seeds())) == 4
    assert seeds() == seeds()
    assert seeds(seed=3)[:2] == seeds(seed=3)[2:]
    assert seeds(seed=-(2**63)) != seeds(seed=3)
    assert all(0 <= seed < 2**64 for seed in seeds(seed=-1))


def test_the_first_delta_tells_how_long_the_request_was_queued():
    now = [10.0]
    rig = Rig(max_num_seqs=1, clock=lambda: now[0])
    rig.add([1], {"max_tokens": 2})
    rig.add([2], {"max_tokens": 2})
    rig.add([3])
    for now[0] in (11.0, 12.0, 15.0, 16.0):
        rig.step()
    rig.scheduler.abort("r2")
    assert [(delta.request_id, delta.queue_s) for delta in rig.deltas] == [
        ("r0", 1.0),
        ("r0", None),
        ("r1", 5.0),
        ("r1", None),
    ]


def test_requests_whose_logits_were_not_finite_are_counted():
    rig = Rig(runner=ScriptedRunner)
    rig.runner.script = {0: [Sample(-1, error=NOT_FINITE)], 1: [Sample(-1, error=("PluginFailed", "another"))]}
    for _ in range(3):
        rig.add([1, 2])
    rig.run()
    assert rig.stats().num_corrupted_total == 1


def drafted(samples, params=None):
    """Commit a step in which a seq with one token got `samples`, all but the first after accepted drafts."""
    rig = Rig()
    rig.add([1, 2], params)
    rig.step()
    plan = rig.scheduler.plan(None, 0, {0: Draft([sample.token_id for sample in samples])})
    later = tuple(samples[1:])
    rig.runner.run(plan)
    result = StepResult({0: samples[0]}, accepted={0: AcceptedDrafts(later, len(later))})
    return rig, rig.scheduler.commit(plan, result)


def test_the_tokens_of_a_step_with_drafts_are_in_one_delta():
    samples = [Sample(token, TokenLogprobs(token, -1.0, 1)) for token in (7, 8, 9)]
    rig, (delta,) = drafted(samples, {"max_tokens": 9, "logprobs": 1})
    assert delta.token_ids == (7, 8, 9)
    assert [entry.token_id for entry in delta.logprobs] == [7, 8, 9]
    assert delta.finish_reason is None
    assert rig.stats().num_generated_tokens_total == 4
    check_scheduler(rig.scheduler)


@pytest.mark.parametrize(
    ("params", "output", "reason"),
    [({"max_tokens": 3}, (7, 8), "length"), ({"max_tokens": 9, "stop_token_ids": [8]}, (7, 8), "stop")],
)
def test_a_seq_ends_amid_the_tokens_of_a_step_with_drafts(params, output, reason):
    rig, (last,) = drafted([Sample(7), Sample(8), Sample(9)], params)
    assert (last.token_ids, last.finish_reason) == (output, reason)
    assert not rig.scheduler._state.seqs


@pytest.mark.parametrize(("count", "lengths"), [(2, []), (3, [3])])
def test_drafts_do_not_make_a_delta_come_before_its_interval(count, lengths):
    _, deltas = drafted([Sample(7)] * count, {"max_tokens": 9, "stream_interval": 3})
    assert [len(delta.token_ids) for delta in deltas] == lengths


def test_tokens_before_one_that_could_not_be_sampled_are_reported():
    rig, (tokens, failed) = drafted([Sample(7), Sample(8), Sample(-1, error=NOT_FINITE)], {"max_tokens": 9})
    assert (tokens.token_ids, tokens.finish_reason) == ((7, 8), None)
    assert (failed.finish_reason, failed.error) == ("error", NOT_FINITE)
    assert rig.stats().num_corrupted_total == 1
    assert not rig.scheduler._state.seqs
