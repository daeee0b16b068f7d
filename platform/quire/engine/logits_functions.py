"""Functions of the caller that change logits: `SamplingParams.logits_processors`, in-process only.

A function takes the ids of the answer so far and logits [vocab], or the ids of the prompt before them too, and gives
the logits to sample from, which may be the same tensor. It costs a call per token of its request, and of no other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from quire.errors import QuireError, Told

NAME = "logits_processors"


@dataclass(frozen=True, slots=True)
class LogitsFunctions:
    """The functions of one seq."""

    functions: tuple[Callable[..., Any], ...]
    prompt_ids: Sequence[int]

    def __call__(self, logits: Tensor, output_ids: Sequence[int]) -> Tensor:
        """logits [vocab] -> [vocab]. Raises QuireError where a function raises or gives something else."""
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
            raise QuireError(f"A function of `{NAME}` must give a tensor of shape {list(logits.shape)}.", NAME)
        return made


def change_rows(logits: Tensor, rows: Sequence[tuple[int, LogitsFunctions, Sequence[int]]]) -> dict[int, Told]:
    """Change `logits` [rows, vocab] in place where rows have functions; what errors are `told` by, by row.

    rows: number, functions and the ids of the answer so far.
    """
    failed: dict[int, Told] = {}
    for row, functions, output_ids in rows:
        try:
            logits[row] = functions(logits[row].clone(), output_ids)
        except QuireError as error:
            failed[row] = error.told
    return failed


def _num_arguments(function: Callable[..., Any]) -> int:
    """Of a call by position; 2 where it cannot be found out."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
