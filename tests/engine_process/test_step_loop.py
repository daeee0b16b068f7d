import itertools
from statistics import median

import pytest
from fake_engine_process import RAISES, REFUSED, FakeEngine

from quire.engine_process.pacing.time_slicing import MIN_BESIDE_OTHERS
from quire.engine_process.step_loop import MAX_FAILED_STEPS, MAX_PAUSE_S, StepLoop, StepsKeepFailing
from quire.engine_process.wire.protocol import Abort, RequestRejected, StepOutputs, Submit
from quire.errors import Overloaded
from quire.params.sampling import SamplingParams
from quire.types import Prompt, Request


class Rig:
    """A loop with fake engines, the messages it sent, and a clock that steps move."""

    def __init__(self, *names, seconds=0.01):
        self.sent, self.now = [], 0.0
        self.loop = StepLoop(self.sent.append, clock=lambda: self.now)
        self.engines = {name: FakeEngine(name) for name in names}
        for engine in self.engines.values():
            self.loop.add(engine, 2048)
            self._slow(engine, seconds)

    def _slow(self, engine, seconds):
        step = engine.step

        def timed(max_tokens=None, max_background=0):
            self.now += seconds
            return step(max_tokens, max_background)

        engine.step = timed

    def submit(self, model, request_id, *token_ids, **params):
        prompt = Prompt(token_ids=token_ids or (1,))
        self.loop.submit(
            Submit.from_request(model, Request(id=request_id, prompt=prompt, params=SamplingParams(**params)))
        )

    def run(self):
        while self.loop.step() is not None:
            pass

    def deltas(self, request_id=None):
        every = [delta for message in self.sent if isinstance(message, StepOutputs) for delta in message.deltas]
        return [delta for delta in every if request_id in (None, delta.request_id)]


def test_a_request_runs_to_its_end_and_the_loop_then_waits():
    rig = Rig("a")
    rig.submit("a", "r", max_tokens=3)
    assert [rig.loop.step() for _ in range(4)] == [0, 0, 0, None]
    assert [delta.token_ids for delta in rig.deltas()] == [(1,), (2,), (3,)]
    assert rig.deltas()[-1].finish_reason == "length"


def test_all_deltas_of_a_step_travel_in_one_message():
    rig = Rig("a")
    for i in range(5):
        rig.submit("a", f"r{i}", max_tokens=2)
    rig.run()
    assert [len(message.deltas) for message in rig.sent] == [5, 5]


def test_a_refusal_goes_back_with_type_and_field():
    rig = Rig("a")
    rig.submit("a", "r", REFUSED)
    rig.submit("nowhere", "s")
    first, second = rig.sent
    assert isinstance(first, RequestRejected)
    assert (first.request_id, first.error.kind, first.error.param) == ("r", "BadRequest", "prompt")
    assert (second.request_id, second.error.kind) == ("s", "NotFound")


def test_an_engine_that_fails_to_add_refuses_only_that_request(caplog):
    rig = Rig("a")
    rig.engines["a"].add = lambda request: 1 / 0
    rig.submit("a", "r")
    assert "ZeroDivisionError" in rig.sent[0].error.message
    assert "could not be added" in caplog.text


def test_an_engine_that_is_full_says_so():
    rig = Rig("a")

    def full(request):
        raise Overloaded("2048 requests wait already.")

    rig.engines["a"].add = full
    rig.submit("a", "r")
    assert rig.sent[0].error.kind == "Overloaded"


def test_a_failing_step_ends_the_requests_of_its_model_and_no_others(caplog):
    rig = Rig("good", "bad")
    rig.submit("good", "g", max_tokens=4)
    rig.submit("bad", "b1", RAISES, n=2)
    rig.submit("bad", "b2")
    rig.run()
    ended = {(delta.request_id, delta.index): delta for delta in rig.deltas() if delta.finish_reason}
    assert ended["g", 0].finish_reason == "length"
    for key in (("b1", 0), ("b1", 1), ("b2", 0)):
        assert ended[key].finish_reason == "error"
        assert "MemoryError: no room" in ended[key].error[1]
    assert not rig.engines["bad"].requests
    rig.submit("bad", "later", max_tokens=1)
    rig.run()
    assert rig.deltas("later")[0].token_ids == (1,)


def test_the_third_failed_step_in_a_row_ends_its_requests_and_the_process():
    rig = Rig("a")
    for i in range(MAX_FAILED_STEPS - 1):
        rig.submit("a", f"r{i}", RAISES)
        rig.loop.step()
    rig.submit("a", "last", RAISES)
    with pytest.raises(StepsKeepFailing, match=r"`a` failed 3 steps in a row\. The last error: .* no room"):
        rig.loop.step()
    assert rig.deltas("last")[0].finish_reason == "error"


def test_failed_steps_that_the_engine_itself_gave_up_are_counted_with_those_that_raised():
    rig = Rig("a")
    rig.engines["a"].failed_steps = MAX_FAILED_STEPS - 1
    rig.submit("a", "last", RAISES)
    with pytest.raises(StepsKeepFailing):
        rig.loop.step()


def test_failures_with_good_steps_between_them_do_not_add_up():
    rig = Rig("a")
    for i in range(3 * MAX_FAILED_STEPS):
        rig.submit("a", f"bad{i}", RAISES)
        rig.run()
        rig.submit("a", f"good{i}", max_tokens=1)
        rig.run()
    assert len([delta for delta in rig.deltas() if delta.finish_reason == "length"]) == 3 * MAX_FAILED_STEPS


def test_an_aborted_request_is_forgotten():
    rig = Rig("a")
    rig.submit("a", "r", max_tokens=100)
    rig.loop.step()
    rig.loop.abort(Abort("a", "r"))
    rig.loop.abort(Abort("a", "unknown"))
    assert rig.loop.step() is None
    assert rig.engines["a"].aborted == [("r", None)]


def test_one_seq_of_a_request_can_be_aborted():
    rig = Rig("a")
    rig.submit("a", "r", n=2, max_tokens=2)
    rig.loop.step()
    rig.loop.abort(Abort("a", "r", 1))
    rig.run()
    assert [(delta.index, delta.token_ids) for delta in rig.deltas()] == [(0, (1,)), (1, (1,)), (0, (2,))]


def test_a_model_that_leaves_finishes_what_it_has_and_takes_no_more():
    rig = Rig("a", "b")
    gone = []
    rig.submit("a", "r", max_tokens=2)
    rig.loop.remove("a", gone.append)
    rig.submit("a", "late")
    assert rig.sent[-1].error.kind == "NotFound"
    assert not gone
    rig.run()
    assert gone == [rig.engines["a"]]
    assert list(rig.loop.engines) == ["b"]
    assert rig.deltas("r")[-1].finish_reason == "length"


def test_a_model_without_requests_leaves_at_once():
    rig = Rig("a")
    gone = []
    rig.loop.remove("a", gone.append)
    assert gone == [rig.engines["a"]]
    assert not rig.loop.engines


def test_a_leaving_model_is_let_go_when_its_last_request_is_aborted():
    rig = Rig("a")
    gone = []
    rig.submit("a", "r", max_tokens=100)
    rig.loop.remove("a", gone.append)
    rig.loop.abort(Abort("a", "r"))
    assert gone


def test_a_model_that_can_do_nothing_yet_pauses_ever_longer_until_a_request_comes():
    rig = Rig("a", seconds=0.0)
    rig.submit("a", "r")
    step, rig.engines["a"].step = rig.engines["a"].step, lambda max_tokens=None, max_background=0: []
    pauses = []
    for _ in range(7):
        assert rig.loop.step() == 0
        pauses.append(rig.loop.step())
        rig.now += pauses[-1]
    assert pauses == pytest.approx([0.001, 0.002, 0.004, 0.008, 0.016, MAX_PAUSE_S, MAX_PAUSE_S])
    assert rig.loop.step() == 0
    rig.engines["a"].step = step
    rig.submit("a", "next", max_tokens=1)
    assert rig.loop.step() == 0
    assert rig.deltas("next")


def test_a_model_that_pauses_leaves_the_others_all_steps():
    rig = Rig("a", "b", seconds=0.0)
    rig.submit("a", "r")
    rig.engines["a"].step = lambda max_tokens=None, max_background=0: []
    rig.submit("b", "s", max_tokens=3)
    while "s" in rig.engines["b"].requests:
        assert rig.loop.step() == 0
    assert rig.engines["b"].steps[1:] == [512, 512], "limited for its own stream"
    assert rig.loop.step() == pytest.approx(0.001)


def test_steps_are_limited_only_while_a_stream_or_another_model_waits_for_them():
    rig = Rig("a", "b")
    rig.submit("a", "alone", max_tokens=2)
    rig.run()
    assert rig.engines["a"].steps == [None, 512], "the second step delays the stream that the first one began"
    rig.submit("a", "r", max_tokens=1)
    rig.submit("b", "s", max_tokens=1)
    rig.run()
    assert rig.engines["b"].steps == [512], "`a` has just had a step"
    assert rig.engines["a"].steps[2:] == [None]


def test_a_prompt_beside_a_stream_of_another_model_has_few_tokens_in_a_step():
    rig = Rig("a", "b")
    rig.submit("a", "r", max_tokens=3)
    rig.loop.step()
    rig.submit("b", "s", max_tokens=1)
    rig.run()
    assert rig.engines["b"].steps == [MIN_BESIDE_OTHERS]


def test_beside_the_load_of_a_model_it_has_half_as_many():
    rig = Rig("a", "b")
    rig.submit("a", "r", max_tokens=3)
    rig.loop.step(beside_load=True)
    rig.submit("b", "s", max_tokens=1)
    rig.loop.step(beside_load=True)
    assert rig.engines["b"].steps == [MIN_BESIDE_OTHERS // 2]


def test_busy_models_are_counted():
    rig = Rig("a", "b")
    assert rig.loop.num_busy == 0
    rig.submit("a", "r", max_tokens=3)
    assert rig.loop.num_busy == 1


def test_a_long_batch_on_one_model_at_most_doubles_the_others_median_time_between_tokens():
    def median_gap(*others):
        rig = Rig("quiet", "busy")
        times = []
        step = rig.engines["quiet"].step

        def noted(max_tokens=None, max_background=0):
            deltas = step(max_tokens, max_background)
            times.append(rig.now)
            return deltas

        rig.engines["quiet"].step = noted
        rig.submit("quiet", "q", max_tokens=200)
        for other in others:
            rig.submit("busy", other, max_tokens=500)
        while rig.engines["quiet"].requests:
            rig.loop.step()
        return median(after - before for before, after in itertools.pairwise(times))

    assert median_gap(*(f"b{i}" for i in range(64))) <= 2.2 * median_gap()


def test_figures_come_from_every_engine():
    rig = Rig("a", "b")
    rig.submit("b", "r")
    assert [(stats.model, stats.num_running) for stats in rig.loop.stats()] == [("a", 0), ("b", 1)]
