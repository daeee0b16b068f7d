"""Scheduling policies: first come first served, and by priority. They see arrivals, never pages."""

from __future__ import annotations

from collections.abc import Iterable

from quire.hookspecs import hookimpl
from quire.records import Context, SchedulerPolicy, SeqView


class FirstComeFirstServed:
    """Admit in order of arrival; the latest arrival gives up its pages first."""

    def __init__(self, context: Context) -> None:
        del context  # has no settings

    def admit_key(self, seq: SeqView) -> int:
        """Earlier arrivals first."""
        return seq.arrival

    def victim_key(self, seq: SeqView) -> int:
        """Latest arrivals first."""
        return seq.arrival


class ByPriority:
    """Admit the smallest `priority` first, among equals in order of arrival; the reverse gives up pages."""

    def __init__(self, context: Context) -> None:
        del context  # has no settings

    def admit_key(self, seq: SeqView) -> tuple[int, int]:
        """More urgent first, then earlier."""
        return seq.priority, seq.arrival

    def victim_key(self, seq: SeqView) -> tuple[int, int]:
        """Less urgent first, then later."""
        return seq.priority, seq.arrival


@hookimpl
def quire_scheduler_policies() -> Iterable[SchedulerPolicy]:
    """The two policies that vLLM has, under its names."""
    yield SchedulerPolicy(name="fcfs", build=FirstComeFirstServed)
    yield SchedulerPolicy(name="priority", build=ByPriority)
