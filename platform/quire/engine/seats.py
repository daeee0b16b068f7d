"""Seats: whose requests may begin, when more adapters are wanted than have a place on the device.

Requests with the same adapters are a party. While there are seats for all, everyone begins at once. When a party
finds none, it queues, and the adapter that has sat longest takes in only requests that were there before, and of these
no more than a turn's worth: as they end its seat becomes free, and the first of the queue gets it. So everyone
waits for at most one turn of each party before it, whatever arrives later; requests with one adapter still run
together. (The gated discipline of polling systems: Takagi, "Analysis of Polling Systems", 1986.)

It knows neither requests nor files. Everything here is called under the lock of `quire.engine.adapters`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from quire.engine.adapter import Adapter, Party, Standing, Visit
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


class Seats:
    """Seats of all runtimes of a model; `per_runtime` of each."""

    def __init__(self, per_runtime: int, num_runtimes: int) -> None:
        self._per_runtime, self._num_runtimes = per_runtime, num_runtimes
        self._num_arrived = 0
        self._turns: dict[Adapter, _Turn] = {}  # those whose seats are held, the oldest turn first
        self._queue: dict[Party, Standing] = {}  # parties that were told to wait, the first one first
        self._waiting: Counter[Party] = Counter()  # how many requests have not begun
        self._called: set[Party] | None = None  # those in the queue that may sit down now; None = not worked out
        self._first_kept_out: Party | None = None
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
    def anyone_waits(self) -> bool:
        """Whether a party was told to wait and has not begun."""
        return bool(self._queue)

    def arrive(self, request_id: str, party: Party) -> Visit:
        """A request that needs these adapters has come."""
        self._num_arrived += 1
        self._waiting[party] += 1
        return Visit(request_id, self._num_arrived, party)

    def may_read(self, party: Party) -> bool:
        """Whether it may take room in memory: not while a party before it lacks some."""
        self._work_out()
        return self._first_kept_out in (None, party)

    def begin(self, visit: Visit, standing: Standing) -> bool:
        """Whether a request may begin now; then it holds the seats until it leaves. Raises what runtimes raise."""
        party = visit.party
        if standing is Standing.HERE and party not in self._queue and self._joins(visit):
            return True
        if self._queue.get(party) is not standing:
            self._queue[party] = standing
            self._called = None
        if standing is not Standing.HERE or party not in self._work_out():
            return False
        return self._sit_down(visit)

    def leave(self, visit: Visit) -> None:
        """A request has ended. Raises what runtimes raise, when all is done."""
        if not visit.begun:
            self._no_longer_waits(visit.party)
            return
        for adapter in visit.party:
            adapter.holders.discard(visit.request_id)
            if not adapter.holders:
                self._called = None
                del self._turns[adapter]
                _runtime(adapter).tell(_runtime(adapter).built.unseat, adapter.loaded)

    def _joins(self, visit: Visit) -> bool:
        turns = [self._turns.get(adapter) for adapter in visit.party]
        if not all(turn is not None and turn.admits(visit) for turn in turns):
            return False
        self._hold(visit)
        return True

    def _hold(self, visit: Visit) -> None:
        for adapter in visit.party:
            adapter.holders.add(visit.request_id)
            adapter.kept_for.discard(visit.party)
            self._turns[adapter].left -= self._turns[adapter].closed_at is not None
        visit.begun = True
        self._no_longer_waits(visit.party)

    def _no_longer_waits(self, party: Party) -> None:
        self._waiting[party] -= 1
        if not self._waiting[party]:
            del self._waiting[party]
            self._leave_queue(party)

    def _leave_queue(self, party: Party) -> None:
        """It has had its turn, or nobody of it is left: its adapters need not be kept in memory for it."""
        self._queue.pop(party, None)
        self._called = None
        for adapter in party:
            adapter.kept_for.discard(party)

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

    def _work_out(self) -> set[Party]:
        """The parties that may sit down now: as many of the first as there are seats for. Others' turns are closed."""
        if self._called is not None:
            return self._called
        self._called, self._first_kept_out = set(), None
        free = Counter({lane: self._per_runtime for lane in range(self._num_runtimes)})
        free.subtract(adapter.lane for adapter in self._turns)
        seen: set[Adapter] = set(self._turns)
        kept_out, short = 0, False
        for party, standing in self._queue.items():
            if standing is Standing.COMING:
                continue  # who waits for the disk keeps nobody else waiting
            if standing is Standing.FULL or not self._let_in(party):
                self._first_kept_out = self._first_kept_out or party
                kept_out += 1
                continue
            missing = [adapter for adapter in party if adapter not in seen]
            seen.update(missing)
            free.subtract(adapter.lane for adapter in missing)
            short = short or any(free[adapter.lane] < 0 for adapter in missing)
            if not short:
                self._called.add(party)
            elif kept_out - sum(min(0, left) for left in free.values()) >= len(self._turns):
                break  # all turns are closed, nobody further back matters
        self._close_turns(free, kept_out)
        return self._called

    def _let_in(self, party: Party) -> bool:
        """Whether it had its place in memory before somebody was kept out: those are served first, which makes room."""
        return self._first_kept_out is None or all(party in adapter.kept_for for adapter in party)

    def _close_turns(self, free: Counter[int], kept_out: int) -> None:
        """Let the oldest turns come to an end, as many as others need, and no more."""
        for adapter, turn in self._turns.items():
            if free[adapter.lane] < 0 or kept_out > 0:
                kept_out -= free[adapter.lane] >= 0
                free[adapter.lane] += free[adapter.lane] < 0
                if turn.closed_at is None:
                    turn.closed_at, turn.left = self._num_arrived + 1, TURN
            else:
                turn.closed_at = None


def _runtime(adapter: Adapter) -> Runtime:
    assert adapter.runtime is not None, "it was read"
    return adapter.runtime
