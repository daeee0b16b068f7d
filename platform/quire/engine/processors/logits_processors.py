"""Logits processors of plugins.

A processor is built once per model and started once per sequence; it is called only for rows that ask for it. An
exception fails the rows of its call and is counted against the plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from quire.engine.processors.logits_functions import NAME as FUNCTIONS, LogitsFunctions, change_rows
from quire.errors import BadRequest, PluginOff, QuireError, WireError
from quire.hooks.call_stats import call_plugin, plugin_fault
from quire.params.sampling import SamplingParams
from quire.records import Context, LogitsProcessor, LogitsProcessorImpl, Registry

HOOK = "quire_logits_processors"
NAN = "it made NaN of logits"


@dataclass(slots=True, eq=False)
class ProcessorState:
    """The state of one processor for one sequence; `LogitsProcessorImpl.apply` gets one per row."""

    processor: str
    state: Any
    output_ids: Sequence[int]


class LogitsProcessors:
    """The logits processors of the loaded plugins, built for one model."""

    def __init__(self, registry: Registry, context: Callable[[str], Context]) -> None:
        self._registry = registry
        self._records: Mapping[str, LogitsProcessor] = registry.by_hook(HOOK)
        self._plugins = {name: registry.plugin_of(HOOK, name) for name in self._records}
        self._built: dict[str, LogitsProcessorImpl] = {}
        self._defaults: list[str] = []  # those that every request starts
        for name, record in self._records.items():
            made_for = context(self._plugins[name])
            self._built[name] = self._call(name, record.build, made_for)
            if not record.fields or self._call(name, record.has_defaults, made_for):
                self._defaults.append(name)

    def _call(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        return call_plugin(self._registry, self._plugins[name], function, *args)

    def check(self, params: SamplingParams) -> None:
        """Raise BadRequest for extra fields that no processor declares or whose type is wrong."""
        types = {field: kind for record in self._records.values() for field, kind in record.fields.items()}
        for field, value in params.extra.items():
            if field not in types:
                allowed = ", ".join(sorted(types)) or "none, since no logits processor is loaded"
                raise BadRequest(f"No logits processor has the field `{field}`. Known fields: {allowed}.", field)
            kind = types[field]
            fits = isinstance(value, (int, float) if kind is float else kind)
            if not fits or (isinstance(value, bool) and kind is not bool):
                raise BadRequest(f"`{field}` must be of type {kind.__name__}, got {value!r:.80}.", field)

    def plugins_of(self, states: Sequence[ProcessorState]) -> set[str]:
        return {self._plugins[state.processor] for state in states}

    def start(
        self, params: SamplingParams, output_ids: Sequence[int], prompt_ids: Sequence[int] = ()
    ) -> tuple[ProcessorState, ...]:
        """States of the processors whose `start` returns one for these parameters. Raises QuireError if one fails."""
        if params.logits_processors:
            state = LogitsFunctions(tuple(params.logits_processors), prompt_ids)
            return (ProcessorState(FUNCTIONS, state, output_ids), *self._started(params, output_ids))
        return self._started(params, output_ids)

    def _started(self, params: SamplingParams, output_ids: Sequence[int]) -> tuple[ProcessorState, ...]:
        if not self._defaults and not params.extra:
            return ()
        names = [name for name in self._built if name in self._defaults or self._has_field(name, params)]
        states = {name: self._start(name, params) for name in names}
        return tuple(ProcessorState(name, state, output_ids) for name, state in states.items() if state is not None)

    def _has_field(self, name: str, params: SamplingParams) -> bool:
        return not params.extra.keys().isdisjoint(self._records[name].fields)

    def _start(self, name: str, params: SamplingParams) -> Any | None:
        """State of one processor, None if it has none. While it is switched off, requests without its fields go on."""
        try:
            return self._call(name, self._built[name].start, params)
        except PluginOff:
            if self._records[name].fields and not self._has_field(name, params):
                return None
            raise

    def apply(self, logits: Tensor, states: Sequence[tuple[int, ProcessorState]]) -> dict[int, WireError]:
        """Change `logits` [rows, vocab] in place. Returns errors by row.

        Rows that use the same processor share a call, in the order of the batch. Processors run in the order in which
        they were loaded.
        """
        failed = change_rows(logits, [(i, u.state, u.output_ids) for i, u in states if u.processor == FUNCTIONS])
        for name, processor in self._built.items():
            selected = [(row, state) for row, state in states if state.processor == name and row not in failed]
            if not selected:
                continue
            index = torch.tensor([row for row, _ in selected], device=logits.device)
            try:
                rows, broken = self._call(
                    name, _checked(processor.apply), logits, index, [state for _, state in selected]
                )
            except QuireError as error:
                failed.update((row, error.wire) for row, _ in selected)
                continue
            logits.index_copy_(0, index, rows)
            for i in broken:
                fault = plugin_fault(self._registry, self._plugins[name], processor.apply, NAN)
                failed[selected[i][0]] = fault.wire
        return failed


def _checked(
    apply: Callable[[Tensor, Sequence[ProcessorState]], object],
) -> Callable[[Tensor, Tensor, Sequence[ProcessorState]], tuple[Tensor, Sequence[int]]]:
    """Wrap `apply` into a function of logits [rows, vocab], the rows to change and their states. It returns these rows,
    changed, and the indices of those with NaN, and raises ValueError if no row can be sampled afterwards."""

    @wraps(apply)
    def checked(logits: Tensor, index: Tensor, states: Sequence[ProcessorState]) -> tuple[Tensor, Sequence[int]]:
        rows = logits.index_select(0, index)
        shape = rows.shape
        apply(rows, states)
        if (rows.shape, rows.dtype, rows.device) != (shape, logits.dtype, logits.device):
            found = f"{rows.dtype} {list(rows.shape)} on {rows.device}"
            raise ValueError(f"it turned logits {logits.dtype} {list(shape)} on {logits.device} into {found}")
        nan = rows.isnan().any(-1)
        if not nan.any():
            return rows, ()
        nan &= ~logits.index_select(0, index).isnan().any(-1)  # NaN from the model is not the fault of the processor
        if nan.all():
            raise ValueError(NAN)
        return rows, nan.nonzero().flatten().tolist()

    return checked
