"""The sequence that is scheduled next among those that do not run.

Swapped sequences come before waiting ones; both are in the order of the policy. Sequences of clients and adapters that
already have their share come last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import partial

from quire.engine.fairness.client_shares import ClientShares
from quire.engine.scheduler.seq import QueueKey, Seq
from quire.engine.scheduler.state import SchedulerState
from quire.errors import QuireError, WireError
from quire.types import Request, in_background


class Admission(Enum):
    """Whether a request may begin or resume now, apart from pages and budget."""

    READY = "ready"
    WAIT = "wait"
    """Something of this request is missing, e.g. its grammar is being compiled. Other requests may pass it."""
    WAIT_FOR_ADAPTERS = "wait for adapters"
    """Its adapters have no slots. Requests of the same client with the same adapters need not be tried."""


TryAdmit = Callable[[Request], Admission | QuireError]
"""Acquires what a request needs to run; an error if it can never run. Called again until it returns READY."""


class Candidates:
    """Finds the next sequence to schedule in the queues of `state`. waits: whether a seq is better scheduled later."""

    def __init__(self, state: SchedulerState, try_admit: TryAdmit, waits: Callable[[Seq], bool] | None) -> None:
        self._state, self._try_admit, self._waits, self._shares = state, try_admit, waits, ClientShares(state)
        self._failures: dict[str, WireError] = {}

    def first(self, shares: Mapping[str, int], late: set[str]) -> Seq | None:
        """The sequence to schedule next, if there is one.

        shares: tokens left in this step by client, empty = not divided. Clients without tokens left, and those in
        `late`, come after the other clients.
        """
        late = late | self._shares.late_clients(shares)
        spent = {client for client in shares if in_background(client) and shares[client] <= 0}
        for rank in range(3):  # others, late ones, those in the background
            found = next(self._admissible(partial(_is_of_rank, rank, late, spent)), None)
            if found is not None:
                return found
        return None

    def drain_failures(self) -> dict[str, WireError]:
        """Errors by id of the requests that were found to be inadmissible since the last call."""
        failures, self._failures = self._failures, {}
        return failures

    def _admissible(self, accepts: Callable[[str], bool]) -> Iterator[Seq]:
        state = self._state
        for queue, last in ((state.swapped, set[QueueKey]()), (state.waiting, self._shares.late_queues())):
            closed: set[QueueKey] = set()
            for seq in queue.schedulable(last, closed, accepts):
                request = seq.group.request
                if seq.candidates is not None or request.id in self._failures:
                    continue
                if self._waits is not None and self._waits(seq):
                    continue
                admission = self._try_admit(request)
                if admission is Admission.READY:
                    yield seq
                elif admission is Admission.WAIT_FOR_ADAPTERS:
                    closed.add(seq.queue_key)
                elif isinstance(admission, QuireError):
                    self._failures[request.id] = admission.wire


def _is_of_rank(rank: int, late: set[str], spent: set[str], client: str) -> bool:
    return client not in spent and rank == (2 if in_background(client) else int(client in late))
