"""Groups of ranks that compute one model together: what a rank does with the others.

Every rank calls the same methods in the same order. Sums are in the order of the ranks, so all ranks get the same bits,
and the same bits each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor


class RankLost(RuntimeError):
    """The other ranks did not take part: one has ended, hangs, or has left the forward pass because of an error.

    lasting: whether no later attempt can succeed.
    """

    def __init__(self, message: str, lasting: bool) -> None:
        super().__init__(message)
        self.lasting = lasting


class RankGroup(Protocol):
    """The ranks of a model as one of them sees it. rank: its number, from 0. size: number of ranks."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def start_plan(self, number: int) -> None:
        """Number the attempts that follow: those of a later plan are after all of an earlier one."""
        ...

    def begin(self) -> None:
        """Begin a forward pass, together with the other ranks. Raises RankLost."""
        ...

    def all_reduce(self, x: Any) -> Any:
        """The sum of x over the ranks, possibly in place. Sums inside a compiled program do not raise: see `check`."""
        ...

    def gather(self, x: Tensor, widths: Sequence[int], to_all: bool = False) -> Tensor | None:
        """x float32 [rows, widths[rank]] -> [rows, sum(widths)], the columns of all ranks in their order.

        None on other ranks than the first, unless to_all. Raises RankLost.
        """
        ...

    def check(self) -> None:
        """Raise RankLost if a sum since `begin` has failed, so that what was computed from it is worthless."""
        ...

    def fail(self) -> None:
        """Let all ranks that wait for others fail, now and later. May be called from any thread."""
        ...


class OneMember:
    """A group of a single rank, which has no others to exchange numbers with."""

    rank, size = 0, 1

    def start_plan(self, number: int) -> None:
        """Do nothing: attempts are numbered for other ranks."""

    def begin(self) -> None:
        """Do nothing: there is no rank to wait for."""

    def all_reduce(self, x: Any) -> Any:
        return x

    def gather(self, x: Tensor, widths: Sequence[int], to_all: bool = False) -> Tensor | None:
        return x

    def check(self) -> None:
        """Do nothing: no sum can fail."""

    def fail(self) -> None:
        """Do nothing: no rank waits."""
