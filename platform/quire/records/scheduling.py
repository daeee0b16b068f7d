"""Scheduling policies: the order in which sequences are admitted and preempted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from quire.records.context import Context


class SeqView(Protocol):
    """The attributes of a sequence that a policy may use."""

    @property
    def arrival(self) -> int:
        """Order of arrival; smaller arrived first."""
        ...

    @property
    def priority(self) -> int:
        """Priority of the request; smaller is more urgent."""
        ...

    @property
    def adapter(self) -> str | None:
        """Name of the adapter, None for the base model."""
        ...

    @property
    def num_tokens(self) -> int:
        """Prompt tokens and generated tokens."""
        ...


class SchedulingPolicyImpl(Protocol):
    """Sort keys of sequences. Both methods must be pure functions of the view."""

    def admit_key(self, seq: SeqView) -> Any:
        """The waiting sequence with the smallest key is admitted first."""
        ...

    def victim_key(self, seq: SeqView) -> Any:
        """The running sequence with the largest key is preempted first."""
        ...


@dataclass(frozen=True)
class SchedulerPolicy:
    """An order of admission and preemption, chosen by `--scheduling-policy`."""

    name: str
    build: Callable[[Context], SchedulingPolicyImpl]
