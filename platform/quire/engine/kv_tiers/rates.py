"""Measures how quickly prompts are computed and pages are read, and decides which is sooner done."""

from __future__ import annotations

from dataclasses import dataclass

WEIGHT = 0.3
"""Of the latest measurement."""

MIN_TOKENS = 64
"""Tokens of the smallest step that says how quickly prompts are computed."""

RETRY_EVERY = 16
"""Every so many times that computing would be sooner done, pages are read all the same: the tier may have become
quicker, which only reading shows."""


@dataclass(slots=True)
class Rates:
    """Seconds per token that is computed, and per byte that is read; None until they are measured."""

    s_per_token: float | None = None
    s_per_byte: float | None = None
    num_refused: int = 0

    def computed(self, num_tokens: int, seconds: float) -> None:
        """A step took so long."""
        if num_tokens >= MIN_TOKENS and seconds > 0:
            self.s_per_token = _mean(self.s_per_token, seconds / num_tokens)

    def read(self, num_bytes: int, seconds: float) -> None:
        """Reading pages took so long."""
        if num_bytes and seconds > 0:
            self.s_per_byte = _mean(self.s_per_byte, seconds / num_bytes)

    def compute_s(self, num_tokens: int) -> float | None:
        """Seconds to compute so many tokens, if that is known."""
        return None if self.s_per_token is None else self.s_per_token * num_tokens

    def should_read(self, num_tokens: int, num_bytes: int) -> bool:
        """Whether to read pages of these tokens instead of computing them."""
        if self.s_per_token is None or self.s_per_byte is None:
            return True
        if self.s_per_byte * num_bytes < self.s_per_token * num_tokens:
            return True
        self.num_refused += 1
        return self.num_refused % RETRY_EVERY == 0


def _mean(old: float | None, new: float) -> float:
    return new if old is None else (1 - WEIGHT) * old + WEIGHT * new
