"""A function of a plugin that only fails is switched off, says so, and is tried again later."""

from contextlib import nullcontext as nothing

import pytest

from quire.errors import BadRequest, PluginFailed, PluginOff
from quire.hooks.call_stats import REST_S, PluginCallStats


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Moody:
    """Raises what it is given."""

    def __init__(self) -> None:
        self.error: BaseException | None = ValueError("no")
        self.calls = 0

    def work(self) -> str:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return "done"


def fail(counter: PluginCallStats, moody: Moody, times: int, plugin: str = "p") -> None:
    for _ in range(times):
        with pytest.raises(PluginFailed, match="Plugin 'p' failed: ValueError: no"):
            counter.call(plugin, moody.work)


def test_a_function_that_only_fails_is_not_called_any_more_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counter, moody = PluginCallStats(max_faults=3), Moody()
    fail(counter, moody, 3)
    with pytest.raises(PluginOff, match=r"Plugin 'p' is switched off: Moody.work failed 3 times in a row") as off:
        counter.call("p", moody.work)
    assert (moody.calls, off.value.status) == (3, 503)
    assert counter.snapshot()[0]["off"] == ["Moody.work"]
    assert "Plugin 'p': Moody.work is switched off" in caplog.text


def test_other_functions_and_plugins_go_on() -> None:
    counter, moody = PluginCallStats(max_faults=1), Moody()
    fail(counter, moody, 1)
    assert counter.call("p", int) == counter.call("q", int) == 0


def test_one_success_among_the_faults_keeps_it_on() -> None:
    counter, moody = PluginCallStats(max_faults=3), Moody()
    for error in (BadRequest("The user is wrong."), None):
        fail(counter, moody, 2)
        moody.error = error
        with pytest.raises(BadRequest) if error else nothing():
            counter.call("p", moody.work)
        moody.error = ValueError("no")
    fail(counter, moody, 2)
    assert counter.snapshot()[0]["off"] == []


def test_after_a_rest_one_call_is_tried_and_success_switches_it_on(caplog: pytest.LogCaptureFixture) -> None:
    counter, moody = PluginCallStats(max_faults=2, clock=(clock := Clock())), Moody()
    fail(counter, moody, 2)
    clock.now = REST_S
    fail(counter, moody, 1)
    with pytest.raises(PluginOff):
        counter.call("p", moody.work)
    clock.now, moody.error = 2 * REST_S, None
    assert counter.call("p", moody.work) == "done"
    assert counter.snapshot()[0]["off"] == []
    assert "works again" in caplog.text


@pytest.mark.parametrize("counter", [PluginCallStats(max_faults=0), PluginCallStats(max_faults=1, essential={"p"})])
def test_without_a_budget_and_for_essential_plugins_nothing_is_switched_off(counter: PluginCallStats) -> None:
    fail(counter, Moody(), 5)


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), BaseException("odd")])
def test_whatever_a_plugin_raises_is_its_fault(error: BaseException) -> None:
    moody = Moody()
    moody.error = error
    with pytest.raises(PluginFailed, match=f"Plugin 'p' failed: {type(error).__name__}"):
        PluginCallStats().call("p", moody.work)


def test_an_interrupt_of_the_user_passes() -> None:
    moody = Moody()
    moody.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        PluginCallStats().call("p", moody.work)
