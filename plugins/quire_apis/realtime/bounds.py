"""Bounds on all sessions together: their number, and the audio that they hold."""

from __future__ import annotations

from quire.plugin import Overloaded

MAX_HELD_BYTES = 256 << 20
"""Of audio, in all sessions."""


class SessionBounds:
    """Counts open sessions and the bytes of audio that wait in them."""

    def __init__(self, max_sessions: int, max_bytes: int = MAX_HELD_BYTES) -> None:
        self._max_sessions, self._max_bytes = max_sessions, max_bytes
        self._sessions = 0
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes of audio that wait."""
        return self._held

    def open_session(self) -> None:
        """Count a session. Raises `Overloaded` when there are too many."""
        if self._sessions >= self._max_sessions:
            raise Overloaded(f"The server has {self._max_sessions} realtime sessions (--realtime.max-sessions).")
        self._sessions += 1

    def close_session(self, held: int) -> None:
        """Forget a session and the bytes that it still holds."""
        self._sessions -= 1
        self._held -= held

    def hold(self, num_bytes: int) -> None:
        """Count audio. Raises `Overloaded` when all sessions together hold too much."""
        if self._held + num_bytes > self._max_bytes:
            raise Overloaded("The server holds too much audio that waits to be transcribed; try again later.")
        self._held += num_bytes

    def release(self, num_bytes: int) -> None:
        """Forget audio that no longer waits."""
        self._held -= num_bytes
