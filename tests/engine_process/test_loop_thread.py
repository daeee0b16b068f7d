"""The thread that runs steps: messages between them, and pauses beside loads."""

import itertools
from queue import SimpleQueue
from threading import Event

import pytest
from fake_engine_process import FakeBuilder, FakeEngine

from quire.engine_process.pacing.loading_threads import PAUSE_BESIDE_LOADS
from quire.engine_process.process import MESSAGES_S, EngineProcess
from quire.engine_process.wire.model_changes import LoadModel
from quire.engine_process.wire.protocol import Shutdown, Start, Submit
from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.settings.model_config import ModelConfig
from quire.types import Prompt, Request


def test_requests_under_way_step_between_messages_that_come_in_thousands():
    ticks = itertools.count(step=MESSAGES_S / 10)  # each look at the clock takes a tenth of what messages may
    inbox, engine = SimpleQueue(), FakeEngine("a")
    builder = FakeBuilder()
    builder.build = lambda *_: engine
    host = EngineProcess(inbox, [].append, registry.load([]), builder, clock=lambda: next(ticks))
    host.start(Start(models=[ModelConfig(model="a")]))
    for i in range(100):
        inbox.put(
            Submit.from_request(
                "a", Request(id=f"r{i}", prompt=Prompt(token_ids=(1,)), params=SamplingParams(max_tokens=2))
            )
        )
    inbox.put(Shutdown())
    host.run()
    assert len(engine.steps) >= 5


def test_steps_pause_while_a_model_is_loaded():
    waits, now, loads = [], [0.0], Event()

    class Inbox(SimpleQueue):
        def get(self, block=True, timeout=None):
            waits.append(timeout)
            return super().get(False)

    inbox, engine, builder = Inbox(), FakeEngine("a"), FakeBuilder()
    step = engine.step

    def slow(max_tokens=None, max_background=0):
        now[0] += 0.02
        if len(engine.steps) == 3:
            inbox.put(Shutdown())
            loads.set()
        return step(max_tokens, max_background)

    engine.step = slow
    builder.build = lambda config, *_: engine if config.model == "a" else loads.wait(60) and FakeEngine("b")
    host = EngineProcess(inbox, [].append, registry.load([]), builder, clock=lambda: now[0])
    host.start(Start(models=[ModelConfig(model="a")]))
    inbox.put(
        Submit.from_request("a", Request(id="r", prompt=Prompt(token_ids=(1,)), params=SamplingParams(max_tokens=9)))
    )
    inbox.put(LoadModel(1, ModelConfig(model="b")))
    host.run()
    assert waits == [pytest.approx(0.02 * PAUSE_BESIDE_LOADS)] * 4
