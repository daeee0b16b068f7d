"""A policy: short seqs overtake long ones, but each token is worth only so many places in the queue.

A seq of n tokens waits for those that arrive within n / `tokens_per_place` arrivals after it and are
shorter, and for no others: nobody starves.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire import Option, SchedulerPolicy, hookimpl
from quire.records import Context, SeqView


class ShortFirst:
    """Place in the queue = arrival + tokens / tokens_per_place."""

    def __init__(self, context: Context) -> None:
        self._tokens_per_place: float = context.options["tokens_per_place"]

    def admit_key(self, seq: SeqView) -> tuple[int, float, int]:
        """Urgent before others, then by place; arrival decides between equals."""
        return seq.priority, seq.arrival + seq.num_tokens / self._tokens_per_place, seq.arrival

    def victim_key(self, seq: SeqView) -> tuple[int, float, int]:
        """Who would be admitted last goes first."""
        return self.admit_key(seq)


@hookimpl
def quire_options() -> Iterable[Option]:
    """How much length costs."""
    yield Option("tokens_per_place", float, 50.0, "so many tokens put a seq one place back")


@hookimpl
def quire_scheduler_policies() -> Iterable[SchedulerPolicy]:
    """`--scheduling-policy short-first`."""
    yield SchedulerPolicy("short-first", ShortFirst)
