"""What waits for the loop thread of the host: messages that were read, and calls of its own worker threads.

It knows neither engines nor what the messages mean, nor where they came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

from quire.host.protocol import ToHost, Unreadable

Item = ToHost | Unreadable | Callable[[], None]


class Inbox:
    """One queue; `put` is anybody's, `take` the loop thread's. Looking into an empty one costs the loop nothing."""

    def __init__(self) -> None:
        self._items: SimpleQueue[Item] = SimpleQueue()

    def put(self, item: Item) -> None:
        """A message, or something for the loop thread to call between two steps."""
        self._items.put(item)

    def take(self, timeout_s: float | None) -> Iterator[Item]:
        """What has arrived, one after another; waits up to `timeout_s` (None: as long as it takes) for something to.

        What the caller does not ask for stays.
        """
        if timeout_s != 0:
            try:
                yield self._items.get(timeout=timeout_s)
            except Empty:
                return
        while not self._items.empty():
            yield self._items.get_nowait()
