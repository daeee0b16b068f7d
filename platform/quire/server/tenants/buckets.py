"""Token buckets: how much was used of a limit per minute."""

from __future__ import annotations

from collections.abc import Callable

MINUTE_S = 60.0


class TokenBucket:
    """Holds at most `per_minute` tokens, and gets as many in a minute. It begins full, and may be in debt.

    clock: seconds, monotonic; one that goes back all the same adds nothing and takes nothing away.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._at = clock()

    def resize(self, per_minute: int) -> None:
        """Change the limit; what was used stays used."""
        used = self.per_minute - self.level
        self.per_minute = per_minute
        self._level = per_minute - used

    @property
    def level(self) -> float:
        """What may be taken now; negative: a debt."""
        now = self._clock()
        gained = max(0.0, now - self._at) * self.per_minute / MINUTE_S
        self._at, self._level = now, min(float(self.per_minute), self._level + gained)
        return self._level

    def take(self, amount: float) -> None:
        """Take so much, even if it is not there; negative: give it back."""
        self._level = min(float(self.per_minute), self.level - amount)

    def wait_s(self, amount: float) -> float:
        """Seconds until `amount` can be taken."""
        return max(0.0, amount - self.level) * MINUTE_S / self.per_minute

    @property
    def full_in_s(self) -> float:
        """Seconds until the bucket is full."""
        return self.wait_s(self.per_minute)
