"""Functions of the caller that change logits: `SamplingParams.logits_processors`, in-process only.

As in vLLM, a function takes the output ids so far and logits [vocab], or the prompt ids before them too, and returns
the logits to sample from, which may be the same tensor. It costs a call per token of its own request only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from quire.errors import QuireError, WireError

NAME = "logits_processors"


@dataclass(frozen=True, slots=True)
class LogitsFunctions:
    """The functions of one sequence, applied in order."""

    functions: tuple[Callable[..., Any], ...]
    prompt_ids: Sequence[int]

    def __call__(self, logits: Tensor, output_ids: Sequence[int]) -> Tensor:
        """logits [vocab] -> [vocab]. Raises QuireError if a function raises or returns something else."""
        for function in self.functions:
            logits = self._one(function, logits, output_ids)
        return logits

    def _one(self, function: Callable[..., Any], logits: Tensor, output_ids: Sequence[int]) -> Tensor:
        before = (list(self.prompt_ids),) if _num_arguments(function) == 3 else ()
        try:
            made = function(*before, list(output_ids), logits)
        except Exception as error:  # the caller's code may raise anything
            raise QuireError(f"A function of `{NAME}` failed: {type(error).__name__}: {error}", NAME) from error
        if not isinstance(made, Tensor) or made.shape != logits.shape:
            raise QuireError(f"A function of `{NAME}` must return a tensor of shape {list(logits.shape)}.", NAME)
        return made


def change_rows(logits: Tensor, rows: Sequence[tuple[int, LogitsFunctions, Sequence[int]]]) -> dict[int, WireError]:
    """Change `logits` [rows, vocab] in place where rows have functions. Returns errors by row.

    rows: index, functions and output ids so far.
    """
    failed: dict[int, WireError] = {}
    for row, functions, output_ids in rows:
        try:
            logits[row] = functions(logits[row].clone(), output_ids)
        except QuireError as error:
            failed[row] = error.wire
    return failed


def _num_arguments(function: Callable[..., Any]) -> int:
    """Positional parameters of a function; 2 if its signature cannot be read."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
