"""Scheduling policies: first come, first served, and by priority."""

from __future__ import annotations

from collections.abc import Iterable

from quire.plugin import Context, SchedulerPolicy, SeqView, hookimpl


class FirstComeFirstServed:
    """Admits requests in order of arrival and preempts the latest arrival first."""

    def __init__(self, context: Context) -> None:
        del context  # no settings

    def admit_key(self, seq: SeqView) -> int:
        return seq.arrival

    def victim_key(self, seq: SeqView) -> int:
        return seq.arrival


class ByPriority:
    """Admits the smallest `priority` first, then in order of arrival; preempts in the reverse order."""

    def __init__(self, context: Context) -> None:
        del context  # no settings

    def admit_key(self, seq: SeqView) -> tuple[int, int]:
        return seq.priority, seq.arrival

    def victim_key(self, seq: SeqView) -> tuple[int, int]:
        return seq.priority, seq.arrival


@hookimpl
def quire_scheduler_policies() -> Iterable[SchedulerPolicy]:
    """vLLM's two policies, under vLLM's names."""
    yield SchedulerPolicy(name="fcfs", build=FirstComeFirstServed)
    yield SchedulerPolicy(name="priority", build=ByPriority)
