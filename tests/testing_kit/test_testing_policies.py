"""The check of scheduler policies for plugin authors says yes and no, each for the right reason."""

import pytest

from quire.hooks.registry import load
from quire.records import SchedulerPolicy
from quire_testing import check_scheduler_policy


def policy(admit, victim=lambda seq: seq.arrival) -> SchedulerPolicy:
    made = type("Made", (), {"admit_key": staticmethod(admit), "victim_key": staticmethod(victim)})
    return SchedulerPolicy("made", lambda context: made())


@pytest.mark.parametrize("name", ["fcfs", "priority"])
def test_the_bundled_policies_pass(name: str) -> None:
    check_scheduler_policy(load([]).by_hook("quire_scheduler_policies")[name])


def test_a_policy_that_serves_the_newest_first_starves_a_request() -> None:
    with pytest.raises(AssertionError, match=r"arrival \d+ .* starved"):
        check_scheduler_policy(policy(lambda seq: -seq.arrival, lambda seq: -seq.arrival))


@pytest.mark.parametrize(
    "key",
    [
        lambda seq: (seq.num_tokens, seq.arrival),
        lambda seq: (-seq.num_tokens, seq.arrival),
        lambda seq: (seq.adapter is None, seq.arrival),
        lambda seq: (-seq.priority, seq.arrival),
    ],
    ids=["shortest first", "longest first", "adapters first", "least urgent first"],
)
def test_a_policy_that_lets_one_kind_of_seq_pass_for_ever_starves_the_others(key) -> None:
    with pytest.raises(AssertionError, match="starved"):
        check_scheduler_policy(policy(key))


def test_a_policy_that_only_favours_short_seqs_passes() -> None:
    check_scheduler_policy(policy(lambda seq: seq.arrival + seq.num_tokens / 50))


def test_a_policy_that_preempts_the_seqs_it_admits_first_is_detected() -> None:
    with pytest.raises(AssertionError, match="admission and preemption would alternate"):
        check_scheduler_policy(policy(lambda seq: seq.arrival, lambda seq: -seq.arrival))


def test_a_policy_with_a_mood_is_noticed() -> None:
    calls = iter(range(10**6))
    with pytest.raises(AssertionError, match="gives one sequence different keys"):
        check_scheduler_policy(policy(lambda seq: next(calls)))
