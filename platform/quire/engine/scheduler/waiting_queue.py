"""Sequences that do not run, in the order of the policy.

There is one sorted queue for each client and set of adapters; `schedulable` merges them. Sort keys are computed when a
sequence is pushed: nothing that a policy may read changes while the sequence waits.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections.abc import Callable, Container, Iterator
from heapq import heapify, heappop, heapreplace
from itertools import chain
from typing import Any

from quire.engine.scheduler.policy import Policy
from quire.engine.scheduler.seq import QueueKey, Seq
from quire.errors import PluginFailed

log = logging.getLogger(__name__)

Entry = tuple[Any, int, int, Seq]


class WaitingQueue:
    """Sequences sorted by `admit_key`, then arrival, then id."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._keyless = False
        self._queues: dict[QueueKey, list[Entry]] = {}
        self._front: list[Entry] = []  # accepted seqs that the policy failed on later

    def __len__(self) -> int:
        return len(self._front) + sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[Seq]:
        return (entry[3] for entry in chain(self._front, *self._queues.values()))

    @property
    def heads(self) -> dict[QueueKey, Seq]:
        """The first seq of each queue."""
        return {queue_key: entries[0][3] for queue_key, entries in self._queues.items()}

    def first(self, queue_key: QueueKey, count: int) -> list[Seq]:
        """The first seqs of a queue."""
        return [entry[3] for entry in self._queues[queue_key][:count]]

    def schedulable(
        self,
        last: Container[QueueKey] = (),
        closed: Container[QueueKey] = (),
        accepts: Callable[[str], bool] = lambda client: True,
    ) -> Iterator[Seq]:
        """Seqs of the clients that `accepts` returns True for, in order; queues in `last` come after the others.

        The rest of a queue is skipped as soon as it is in `closed`, which may change between two seqs.
        """
        self._drop_keys_if_off()
        yield from [entry[3] for entry in self._front if accepts(entry[3].client)]
        queues = {queue_key: entries for queue_key, entries in self._queues.items() if accepts(queue_key.client)}
        heap = [(queue_key in last, *entries[0][:3], 0, queue_key) for queue_key, entries in queues.items()]
        try:
            heapify(heap)
            while heap:
                is_last, _, _, _, i, queue_key = heap[0]
                entries = queues[queue_key]
                yield entries[i][3]
                if queue_key in closed or i + 1 == len(entries):
                    heappop(heap)
                else:
                    heapreplace(heap, (is_last, *entries[i + 1][:3], i + 1, queue_key))
        except Exception as error:  # from comparing the keys of a plugin
            fault = self._policy.fault(error)
            log.warning("The scheduling policy's keys cannot be compared; seqs go in order of arrival. %s", fault)
            yield from sorted((s for s in self if accepts(s.client)), key=lambda seq: (seq.arrival, seq.id))

    def push(self, seq: Seq) -> None:
        """Insert a seq in order. Raises PluginFailed if the policy fails on it."""
        try:
            key = self._policy.admit_key(seq)
        except PluginFailed as error:
            raise PluginFailed(f"The scheduling policy could not place the request. {error.message}") from error
        self._drop_keys_if_off()
        queue_key = seq.queue_key
        try:
            insort(self._queues.setdefault(queue_key, []), (key, seq.arrival, seq.id, seq))
        except Exception as error:  # from comparing the keys of a plugin
            if not self._queues[queue_key]:
                del self._queues[queue_key]
            fault = self._policy.fault(error)
            raise PluginFailed(f"The scheduling policy could not place the request. {fault.message}") from error

    def _drop_keys_if_off(self) -> None:
        """Sort by arrival once the policy is switched off."""
        if self._policy.off and not self._keyless:
            self._keyless = True
            for entries in self._queues.values():
                entries[:] = sorted((None, *entry[1:]) for entry in entries)

    def requeue(self, seq: Seq) -> None:
        """Insert a seq that was accepted before; if the policy fails on it now, it goes to the front."""
        try:
            self.push(seq)
        except PluginFailed:
            log.exception("A seq goes to the front of the queue because the scheduling policy failed on it.")
            self._front.append((None, seq.arrival, seq.id, seq))

    def remove(self, seq: Seq) -> None:
        """Remove a seq, in time linear in its position."""
        queue_key = seq.queue_key
        for entries in (self._front, self._queues.get(queue_key, [])):
            for i, entry in enumerate(entries):
                if entry[3] is seq:
                    del entries[i]
                    if entries is not self._front and not entries:
                        del self._queues[queue_key]
                    return
        raise AssertionError(f"seq {seq.id} is not in this queue")
