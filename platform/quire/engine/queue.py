"""SeqQueue: seqs that are not running, in the order in which the policy wants them.

It knows nothing of pages. Keys are computed when a seq enters, since nothing that a policy may look
at changes while a seq stands here.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections.abc import Iterator
from itertools import chain
from typing import Any

from quire.engine.seq import Seq
from quire.errors import PluginFailed
from quire.records import OrdersSeqs

log = logging.getLogger(__name__)

Entry = tuple[Any, int, int, Seq]


class SeqQueue:
    """Sorted by `admit_key`, then arrival, then age of the seq."""

    def __init__(self, policy: OrdersSeqs) -> None:
        self._policy = policy
        self._entries: list[Entry] = []
        self._front: list[Entry] = []  # accepted seqs on which the policy failed afterwards

    def __len__(self) -> int:
        return len(self._entries) + len(self._front)

    def __iter__(self) -> Iterator[Seq]:
        return (entry[3] for entry in chain(self._front, self._entries))

    def push(self, seq: Seq) -> None:
        """Put a seq in its place. Raises PluginFailed when the policy cannot tell where that is."""
        try:
            insort(self._entries, (self._policy.admit_key(seq), seq.arrival, seq.id, seq))
        except Exception as error:
            raise PluginFailed(f"The scheduling policy could not place the request: {error}.") from error

    def put_back(self, seq: Seq) -> None:
        """Like `push`, for a seq that was accepted long ago: a policy that fails now puts it in front."""
        try:
            self.push(seq)
        except PluginFailed:
            log.exception("A seq goes first because the scheduling policy failed on it.")
            self._front.append((None, seq.arrival, seq.id, seq))

    def remove(self, seq: Seq) -> None:
        """Take a seq out, wherever it stands; the first ones are found first."""
        for entries in (self._front, self._entries):
            for i, entry in enumerate(entries):
                if entry[3] is seq:
                    del entries[i]
                    return
        raise AssertionError(f"seq {seq.id} is not in this queue")
