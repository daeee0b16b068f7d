"""Logits processors: the record, and the protocols of what it builds and of the rows it works on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from quire.records.context import Context

if TYPE_CHECKING:
    from torch import Tensor

    from quire.params.sampling import SamplingParams


class ProcessorRow(Protocol):
    """One row of a batch of logits: the state that `start` returned, and the token ids generated so far."""

    state: Any
    output_ids: Sequence[int]


class LogitsProcessorImpl(Protocol):
    """Changes the logits of sequences whose request switches the processor on."""

    def start(self, params: SamplingParams) -> Any | None:
        """State of one sequence; None if its request does not use this processor, which then costs nothing."""
        ...

    def apply(self, logits: Tensor, rows: Sequence[ProcessorRow]) -> None:
        """Change `logits` [rows, vocab] in place; row i belongs to `rows[i]`. Shape, dtype and device must stay."""
        ...


def _never(context: Context) -> bool:
    return False


@dataclass(frozen=True)
class LogitsProcessor:
    """A way to change logits before a token is sampled.

    fields: the extra request fields that switch it on, with their types. Values arrive in `SamplingParams.extra`.
    has_defaults: whether requests to a model that carry none of its fields start it too; a processor without fields is
    always started.
    """

    name: str
    fields: Mapping[str, type]
    build: Callable[[Context], LogitsProcessorImpl]
    has_defaults: Callable[[Context], bool] = _never
