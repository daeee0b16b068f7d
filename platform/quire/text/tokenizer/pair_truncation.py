"""How many tokens each text of a pooled prompt keeps when the prompt is truncated."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from quire.errors import BadRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class PairTruncation:
    """Token limits of each text of a pair, and of the whole prompt with its special tokens; None = no limit.

    side: the side on which a text is cut.
    """

    first: int | None = None
    second: int | None = None
    whole: int | None = None
    side: Literal["left", "right"] = "right"

    @property
    def min_limit(self) -> float:
        """The smallest limit: no prompt of up to this number of tokens is truncated."""
        return min((limit for limit in (self.first, self.second, self.whole) if limit is not None), default=inf)

    def split(self, num_first: int, num_second: int, num_special: int) -> tuple[int, int]:
        """How many tokens each text keeps. The longer text is shortened first, until both are equally long.

        Raises BadRequest when the special tokens alone exceed the limit.
        """
        first = num_first if self.first is None else min(num_first, self.first)
        second = num_second if self.second is None else min(num_second, self.second)
        if self.whole is None:
            return first, second
        budget = self.whole - num_special
        if budget < 0 or (budget == 0 and first + second > 0):
            raise BadRequest(
                f"`truncate_prompt_tokens` must be above {num_special} here, the number of special tokens; got"
                f" {self.whole}.",
                "truncate_prompt_tokens",
            )
        if first + second <= budget:
            return first, second
        shorter = min(first, second, budget // 2)
        if first <= second:
            return shorter, budget - shorter
        return budget - shorter, shorter

    def kept_range(self, count: int, num_kept: int) -> range:
        """The indices of the `num_kept` tokens that remain of a text of `count` tokens."""
        return range(count - num_kept, count) if self.side == "left" else range(num_kept)
