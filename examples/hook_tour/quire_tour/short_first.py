"""A scheduling policy: short sequences overtake long ones, by a bounded number of places in the queue.

A sequence of n tokens waits only for shorter ones among the next n / `tokens_per_place` arrivals, so none starves.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.plugin import Context, Option, SchedulerPolicy, SeqView, hookimpl


class ShortFirst:
    """The place in the queue is arrival + tokens / tokens_per_place."""

    def __init__(self, context: Context) -> None:
        self._tokens_per_place: float = context.options["tokens_per_place"]

    def admit_key(self, seq: SeqView) -> tuple[int, float, int]:
        """By priority, then by place, then by arrival."""
        return seq.priority, seq.arrival + seq.num_tokens / self._tokens_per_place, seq.arrival

    def victim_key(self, seq: SeqView) -> tuple[int, float, int]:
        """The sequence that would be admitted last is preempted first."""
        return self.admit_key(seq)


@hookimpl
def quire_options() -> Iterable[Option]:
    """The cost of length."""
    yield Option("tokens_per_place", float, 50.0, "number of tokens that cost one place in the queue")


@hookimpl
def quire_scheduler_policies() -> Iterable[SchedulerPolicy]:
    """The policy `--scheduling-policy short-first`."""
    yield SchedulerPolicy("short-first", ShortFirst)
