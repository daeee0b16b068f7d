"""The watchdog of the engine process, by a clock and a processor time that the test moves."""

import pytest

from quire.engine_process.watchdog import CHECK_INTERVAL_S, FROZEN_AFTER_S, Watchdog


class Rig:
    def __init__(self, timeout_s=300.0, cpu_known=True, states="S"):
        self.now = self.cpu = 0.0
        self.cpu_known, self.threads = cpu_known, states
        self.watchdog = Watchdog(timeout_s, self, lambda: self.now)

    def cpu_s(self):
        return self.cpu if self.cpu_known else None

    def states(self):
        return frozenset(self.threads)

    def silence(self, seconds, cpu_share=0.0):
        """Look every second for so long; whether one look found the timeout over."""
        self.watchdog.start_ping()
        return any([self._look(cpu_share) for _ in range(int(seconds))])

    def _look(self, cpu_share):
        self.now += CHECK_INTERVAL_S
        self.cpu += cpu_share * CHECK_INTERVAL_S
        return self.watchdog.check()


def test_silence_of_the_whole_timeout_is_found_whether_or_not_the_process_computes():
    for share in (0.0, 1.0):
        rig = Rig()
        assert not rig.silence(299, share)
        assert rig.silence(1, share)


def test_every_response_resets_the_count():
    rig = Rig()
    for _ in range(5):
        assert not rig.silence(299)
        rig.watchdog.answered()
    assert rig.watchdog.silent_s == 0


def test_without_a_question_there_is_no_silence():
    rig = Rig()
    rig.now = 1000.0
    assert not rig.watchdog.check()


def test_one_question_is_open_at_a_time():
    rig = Rig()
    assert [rig.watchdog.start_ping(), rig.watchdog.start_ping()] == [True, False]
    rig.watchdog.answered()
    assert rig.watchdog.start_ping()


def test_a_process_that_neither_answers_nor_computes_is_frozen_until_it_answers():
    rig = Rig()
    rig.silence(FROZEN_AFTER_S - 1)
    assert not rig.watchdog.frozen
    rig.silence(1)
    assert rig.watchdog.frozen
    rig.watchdog.answered()
    assert not rig.watchdog.frozen


def test_a_process_that_a_signal_has_stopped_is_frozen_at_the_next_look():
    rig = Rig()
    rig.silence(2)
    assert not rig.watchdog.frozen
    rig.threads = "T"
    rig.silence(1)
    assert rig.watchdog.frozen


@pytest.mark.parametrize("states", ["R", "D", "SR", "TD"])
def test_a_process_that_waits_for_a_core_or_a_disk_is_not_frozen(states):
    rig = Rig(states=states)
    rig.silence(200)
    assert not rig.watchdog.frozen


@pytest.mark.parametrize(("cpu_share", "cpu_known"), [(1.0, True), (0.0, False)])
def test_a_long_step_that_computes_is_not_frozen(cpu_share, cpu_known):
    rig = Rig(cpu_known=cpu_known)
    rig.silence(299, cpu_share)
    assert not rig.watchdog.frozen


def test_time_in_which_the_watching_process_was_stopped_itself_is_not_held_against_the_other():
    rig = Rig()
    rig.silence(10)
    rig.now += 3600
    assert not rig.watchdog.check()
    assert rig.watchdog.silent_s <= 10 + 2 * CHECK_INTERVAL_S
