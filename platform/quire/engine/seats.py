"""Seats: whose requests may begin, when more adapters are wanted than have a place on the device or in memory.

Requests with the same adapters are a party. While there are seats for all, everyone begins at once. When a party
finds none, it queues, and the adapter that has sat longest takes in only requests that were there before, and of these
no more than a turn's worth: as they end its seat becomes free, and the first of the queue gets it. So everyone
waits for at most one turn of each party before it, whatever arrives later; requests with one adapter still run
together. (The gated discipline of polling systems: Takagi, "Analysis of Polling Systems", 1986.)

Room in memory is promised from the front of the queue, to whole parties, after those who sit. Nobody keeps a part
of what he needs while he waits for the rest, so no two can wait for each other, and the first always gets through.

It knows neither requests nor files. Everything here is called under the lock of `quire.engine.adapters`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from quire.engine.adapter import Adapter, Party, Visit
from quire.engine.residency import Residency
from quire.engine.runtimes import Runtime

TURN = 32
"""Requests that an adapter still takes in when others wait for its seat."""


@dataclass(slots=True)
class _Turn:
    """The time of an adapter on its seat. closed_at: requests that arrived later may not join; None = all may."""

    closed_at: int | None = None
    left: int = TURN

    def admits(self, visit: Visit) -> bool:
        """Whether a request may join those that hold the seat."""
        return self.closed_at is None or (visit.arrival < self.closed_at and self.left > 0)


@dataclass(slots=True)
class _Line:
    """How far down the queue seats and memory go. summoned: parties that have, or get, room in memory.

    called: those that may sit down now. as_of: of which state of the memory this is true.
    """

    as_of: int
    summoned: set[Party] = field(default_factory=set)
    called: set[Party] = field(default_factory=set)


class Seats:
    """Seats of all runtimes of a model; `per_runtime` of each. residency: their memory."""

    def __init__(self, per_runtime: int, num_runtimes: int, residency: Residency) -> None:
        self._per_runtime, self._num_runtimes, self._residency = per_runtime, num_runtimes, residency
        self._num_arrived = 0
        self._turns: dict[Adapter, _Turn] = {}  # those whose seats are held, the oldest turn first
        self._queue: dict[Party, None] = {}  # parties that were told to wait, the first one first
        self._waiting: Counter[Party] = Counter()  # how many requests have not begun
        self._line: _Line | None = None  # None = to be worked out
        self._sitting: dict[tuple[int, int], Adapter] = {}

    @property
    def num_seated(self) -> int:
        """Adapters whose seats are held."""
        return len(self._turns)

    def names(self, most: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of adapters on held seats, and of some of those that requests wait for."""
        waiting = dict.fromkeys(adapter.ref.name for party in self._queue for adapter in party)
        return tuple(adapter.ref.name for adapter in self._turns), tuple(waiting)[:most]

    @property
    def num_deferred(self) -> int:
        """Requests of the parties that were told to wait."""
        return sum(self._waiting[party] for party in self._queue)

    @property
    def anyone_waits(self) -> bool:
        """Whether a party was told to wait and has not begun."""
        return bool(self._queue)

    def arrive(self, request_id: str, party: Party) -> Visit:
        """A request that needs these adapters has come."""
        self._num_arrived += 1
        self._waiting[party] += 1
        return Visit(request_id, self._num_arrived, party)

    def begin(self, visit: Visit) -> bool:
        """Whether a request may begin now; then it holds the seats until it leaves. Raises what runtimes raise."""
        party = visit.party
        if party not in self._queue:
            if self._joins(visit):
                return True
            self._queue[party] = self._line = None
        if party not in self._worked_out().summoned or not self._residency.summon(party):
            return False
        return party in self._worked_out().called and self._sit_down(visit)

    def leave(self, visit: Visit) -> None:
        """A request has ended. Raises what runtimes raise, when all is done."""
        if not visit.begun:
            self._no_longer_waits(visit.party)
            return
        for adapter in visit.party:
            adapter.holders.discard(visit.request_id)
            if not adapter.holders:
                self._line = None
                del self._turns[adapter]
                _runtime(adapter).tell(_runtime(adapter).built.unseat, adapter.loaded)

    def _joins(self, visit: Visit) -> bool:
        if self._queue:
            self._worked_out()  # which closes the turns of those who sit while others want their seats
        turns = [self._turns.get(adapter) for adapter in visit.party]
        if not all(turn is not None and turn.admits(visit) for turn in turns):
            return False
        self._hold(visit)
        return True

    def _hold(self, visit: Visit) -> None:
        for adapter in visit.party:
            adapter.holders.add(visit.request_id)
            self._turns[adapter].left -= self._turns[adapter].closed_at is not None
        visit.begun = True
        self._no_longer_waits(visit.party)

    def _no_longer_waits(self, party: Party) -> None:
        self._waiting[party] -= 1
        if not self._waiting[party]:
            del self._waiting[party]
            self._leave_queue(party)

    def _leave_queue(self, party: Party) -> None:
        self._queue.pop(party, None)
        self._line = None

    def _sit_down(self, visit: Visit) -> bool:
        """Seats for all of a party, or for none if one is not to be had now."""
        taken: list[Adapter] = []
        try:
            for adapter in visit.party:
                if adapter not in self._turns and not self._take_seat(adapter):
                    self._give_back(taken)
                    return False
                taken += [] if adapter in self._turns else [adapter]
        except BaseException:
            self._give_back(taken)
            raise
        for adapter in visit.party:
            self._turns.pop(adapter, None)
            self._turns[adapter] = _Turn()
        self._leave_queue(visit.party)
        self._hold(visit)
        return True

    def _take_seat(self, adapter: Adapter) -> bool:
        runtime = _runtime(adapter)
        seat = runtime.call(runtime.built.seat, adapter.loaded)
        if seat is None:
            return False
        before = self._sitting.get((runtime.lane, seat))
        if before is not None:
            before.sits = False
        self._sitting[runtime.lane, seat] = adapter
        adapter.seat, adapter.sits = seat, True
        return True

    def _give_back(self, taken: list[Adapter]) -> None:
        for adapter in taken:
            _runtime(adapter).tell(_runtime(adapter).built.unseat, adapter.loaded)

    def _worked_out(self) -> _Line:
        if self._line is None or self._line.as_of != self._residency.changes:
            self._line = self._work_out()
        return self._line

    def _work_out(self) -> _Line:
        """Give out the room in memory, and the seats, from the front of the queue; close turns for who gets none."""
        line, short = _Line(self._residency.changes), False
        free = Counter({lane: self._per_runtime for lane in range(self._num_runtimes)})
        free.subtract(adapter.lane for adapter in self._turns)
        seen, wanted, kept_out = set(self._turns), set(self._turns), 0
        for party in self._queue:
            kept_out = sum(not adapter.pinned for adapter in wanted.union(party)) - self._residency.room
            if kept_out > 0:
                break  # who comes behind gets nothing either, or this one might wait for ever
            wanted.update(party)
            line.summoned.add(party)
            if any(adapter.loaded is None for adapter in party):
                continue  # who waits for the disk keeps nobody else from a seat
            missing = [adapter for adapter in party if adapter not in seen]
            seen.update(missing)
            free.subtract(adapter.lane for adapter in missing)
            short = short or any(free[adapter.lane] < 0 for adapter in missing)
            if not short:
                line.called.add(party)
        self._residency.wanted = wanted
        self._close_turns(free, max(0, kept_out))
        return line

    def _close_turns(self, free: Counter[int], kept_out: int) -> None:
        """Let the oldest turns come to an end, as many as others need for a seat or in memory, and no more."""
        for adapter, turn in self._turns.items():
            if free[adapter.lane] < 0 or kept_out > 0:
                free[adapter.lane] += free[adapter.lane] < 0
                kept_out -= 1
                if turn.closed_at is None:
                    turn.closed_at, turn.left = self._num_arrived + 1, TURN
            else:
                turn.closed_at = None


def _runtime(adapter: Adapter) -> Runtime:
    assert adapter.runtime is not None, "it was read"
    return adapter.runtime
