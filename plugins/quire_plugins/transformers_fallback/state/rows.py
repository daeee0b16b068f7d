"""Runs a module that keeps state for each row of a step: transformers' modules know no batch of rows of any length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from quire_plugins.transformers_fallback.state.cache import StepCache
from quire_plugins.transformers_fallback.state.tracing import KeptTensor, StateUse

if TYPE_CHECKING:
    from quire_models.step.forward_batch import ForwardBatch
    from quire_plugins.transformers_fallback.step import ModelStep


@dataclass(frozen=True)
class RowGroup:
    """Rows that a module computes at once. tokens: int64 [rows * count], their tokens in the step, row by row. slots:
    int64 [rows]. is_new: no token of them was computed before.
    """

    tokens: Tensor
    slots: Tensor
    is_new: bool

    @property
    def rows(self) -> int:
        return len(self.slots)

    def singles(self) -> Iterator[RowGroup]:
        """Each token of one row that continues as a group of its own."""
        return (replace(self, tokens=token) for token in self.tokens.split(1))


def row_groups(forward: ForwardBatch) -> list[RowGroup]:
    """The rows of a step: those with one token that continue together, each other row for itself."""
    slots, lens = forward.state_slots, forward.rows.lens_host
    assert slots is not None, "the model keeps state"
    starts = np.cumsum(lens) - lens
    continues = (forward.rows.contexts_host > lens).tolist()
    device, groups = slots.device, []
    singles = [row for row, length in enumerate(lens.tolist()) if length == 1 and continues[row]]
    if singles:
        chosen = torch.tensor(singles, device=device)
        groups.append(RowGroup(torch.tensor(starts[singles], device=device), slots[chosen], False))
    for row, length in enumerate(lens.tolist()):
        if length > 1 or (length == 1 and not continues[row]):
            tokens = torch.arange(int(starts[row]), int(starts[row]) + length, device=device)
            groups.append(RowGroup(tokens, slots[row : row + 1], not continues[row]))
    return groups


class RowByRow:
    """In the place of the `forward` of a module that keeps state.

    number: of the module's state in the pool. by_token: a row that continues is computed token by token, because the
    module reads its state only then.
    """

    def __init__(self, module: Any, use: StateUse, number: int, cache: StepCache, step: ModelStep) -> None:
        self._forward: Callable[..., Any] = module.forward
        self._use, self._number, self._cache, self._step = use, number, cache, step
        self._dtypes: dict[KeptTensor, torch.dtype] = {}
        self.by_token = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's output for all tokens of the step, [1, tokens, …]."""
        if not any(each is self._cache for each in (*args, *kwargs.values())):
            return self._forward(*args, **kwargs)
        count = len(self._step.current.tokens)
        parts = [
            (group, self._run(group, count, args, kwargs))
            for rows in self._step.row_groups()
            for group in (rows.singles() if self.by_token and not rows.is_new and rows.rows == 1 else (rows,))
        ]
        return _merged(parts, count)

    def _run(self, group: RowGroup, count: int, args: Any, kwargs: Any) -> Any:
        if group.is_new:
            self._clear()
        else:
            self._read(group)
        with self._step.only(group.tokens):
            output = self._forward(
                *_taken(args, group, count), **{name: _taken(value, group, count) for name, value in kwargs.items()}
            )
        self._write(group)
        return output

    def _read(self, group: RowGroup) -> None:
        """Take the state of the rows from their slots."""
        layer = self._cache.layers[self._use.layer]
        for kept, pool in zip(self._use.tensors, self._pools(), strict=True):
            found = pool.index_select(0, group.slots).to(self._dtypes.get(kept, pool.dtype))
            layer.dtype, layer.device = found.dtype, found.device
            _put(layer, kept, found)
        for index in self._use.has_previous:
            layer.has_previous_state[index] = True

    def _write(self, group: RowGroup) -> None:
        """Put the state of the rows into their slots."""
        layer = self._cache.layers[self._use.layer]
        for kept, pool in zip(self._use.tensors, self._pools(), strict=True):
            states = layer.conv_states if kept.kind == "conv" else layer.recurrent_states
            found = states[kept.index]
            self._dtypes[kept] = found.dtype
            pool.index_copy_(0, group.slots, found.to(pool.dtype))
        self._clear()

    def _clear(self) -> None:
        layer = self._cache.layers[self._use.layer]
        for kept in self._use.tensors:
            _put(layer, kept, None)
        for index in self._use.has_previous:
            layer.has_previous_state[index] = False

    def _pools(self) -> tuple[Tensor, ...]:
        state = self._step.current.state
        assert state is not None, "the model keeps state"
        return state.tensors[self._number]


def _put(layer: Any, kept: KeptTensor, tensor: Tensor | None) -> None:
    """Set a state of a layer of transformers' cache, or remove it."""
    is_conv = kept.kind == "conv"
    (layer.conv_states if is_conv else layer.recurrent_states)[kept.index] = tensor
    flags = layer.is_conv_states_initialized if is_conv else layer.is_recurrent_states_initialized
    flags[kept.index] = tensor is not None
    if is_conv:
        layer.conv_kernel_size[kept.index] = None if tensor is None else kept.shape[-1]


def _taken(value: Any, group: RowGroup, count: int) -> Any:
    """An argument for some rows: tensors [1, count, …] as [rows, tokens of each, …], everything else unchanged."""
    if isinstance(value, tuple | list):
        return type(value)(_taken(each, group, count) for each in value)
    if not isinstance(value, Tensor) or value.shape[:2] != (1, count):
        return value
    return value[0].index_select(0, group.tokens).unflatten(0, (group.rows, -1))


def _merged(parts: list[tuple[RowGroup, Any]], count: int) -> Any:
    """The outputs of all rows, in the order of the tokens; of what is no tensor, the last row's."""
    output = parts[0][1]
    if isinstance(output, tuple):
        columns = zip(*(each for _, each in parts), strict=True)
        return tuple(
            _merged([(group, each) for (group, _), each in zip(parts, column, strict=True)], count)
            for column in columns
        )
    if not isinstance(output, Tensor):
        return parts[-1][1]
    merged = output.new_empty(1, count, *output.shape[2:])
    for group, rows in parts:
        merged[0].index_copy_(0, group.tokens, rows.flatten(0, 1))
    return merged
