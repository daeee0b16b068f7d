"""Plugin code inside sampling: logits processors, and what happens when they raise.

A processor is built once per model and started once per seq; rows that did not ask for it never meet
it. An exception fails the rows of the call it came from, is counted against the plugin, and nothing else
stops. It knows no formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from quire.counting import call_plugin, plugin_fault
from quire.engine.logits_functions import NAME as FUNCTIONS, LogitsFunctions, change_rows
from quire.errors import BadRequest, PluginOff, QuireError, Told
from quire.records import Context, LogitsProcessor, ProcessesLogits, Registry
from quire.sampling import SamplingParams

HOOK = "quire_logits_processors"
NAN = "it made NaN of logits"


@dataclass(slots=True, eq=False)
class Use:
    """One seq's use of one processor; what `apply` sees as a row."""

    processor: str
    state: Any
    output_ids: Sequence[int]


class Processors:
    """The logits processors of the loaded plugins, at work on one model."""

    def __init__(self, registry: Registry, context: Callable[[str], Context]) -> None:
        self._registry = registry
        self._records: Mapping[str, LogitsProcessor] = registry.of(HOOK)
        self._plugins = {name: registry.plugin_of(HOOK, name) for name in self._records}
        self._built: dict[str, ProcessesLogits] = {
            name: self._call(name, record.build, context(self._plugins[name])) for name, record in self._records.items()
        }

    def _call(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        return call_plugin(self._registry, self._plugins[name], function, *args)

    def check(self, params: SamplingParams) -> None:
        """Raise BadRequest for extra fields that no processor knows or whose type is wrong."""
        known = {field: kind for record in self._records.values() for field, kind in record.fields.items()}
        for field, value in params.extra.items():
            if field not in known:
                allowed = ", ".join(sorted(known)) or "none, since no logits processor is loaded"
                raise BadRequest(f"No logits processor knows the field `{field}`. Known fields: {allowed}.", field)
            kind = known[field]
            fits = isinstance(value, (int, float) if kind is float else kind)
            if not fits or (isinstance(value, bool) and kind is not bool):
                raise BadRequest(f"`{field}` must be of type {kind.__name__}, got {value!r:.80}.", field)

    def plugins_of(self, uses: Sequence[Use]) -> set[str]:
        """The plugins whose processors these are."""
        return {self._plugins[use.processor] for use in uses}

    def start(
        self, params: SamplingParams, output_ids: Sequence[int], prompt_ids: Sequence[int] = ()
    ) -> tuple[Use, ...]:
        """The seq's uses: of those processors whose `start` gives a state. Raises QuireError if one fails."""
        if params.logits_processors:
            state = LogitsFunctions(tuple(params.logits_processors), prompt_ids)
            return (Use(FUNCTIONS, state, output_ids), *self._started(params, output_ids))
        return self._started(params, output_ids)

    def _started(self, params: SamplingParams, output_ids: Sequence[int]) -> tuple[Use, ...]:
        if not self._built:
            return ()
        states = {name: self._start(name, params) for name in self._built}
        return tuple(Use(name, state, output_ids) for name, state in states.items() if state is not None)

    def _start(self, name: str, params: SamplingParams) -> Any | None:
        """The state of one; None also while it is off, for a request that has none of its fields."""
        fields = self._records[name].fields
        try:
            return self._call(name, self._built[name].start, params)
        except PluginOff:
            if fields and not fields.keys() & params.extra.keys():
                return None
            raise

    def apply(self, logits: Tensor, uses: Sequence[tuple[int, Use]]) -> dict[int, Told]:
        """Let processors change `logits` [rows, vocab] in place; what errors are `told` by, by row.

        Rows that use the same processor reach it in one call, in the order of the batch; processors take
        turns in the order in which they were loaded.
        """
        failed = change_rows(logits, [(i, u.state, u.output_ids) for i, u in uses if u.processor == FUNCTIONS])
        for name, processor in self._built.items():
            mine = [(row, use) for row, use in uses if use.processor == name and row not in failed]
            if not mine:
                continue
            index = torch.tensor([row for row, _ in mine], device=logits.device)
            try:
                some, broken = self._call(name, _checked(processor.apply), logits, index, [use for _, use in mine])
            except QuireError as error:
                failed.update((row, error.told) for row, _ in mine)
                continue
            logits.index_copy_(0, index, some)
            for at in broken:
                fault = plugin_fault(self._registry, self._plugins[name], processor.apply, NAN)
                failed[mine[at][0]] = fault.told
        return failed


def _checked(
    apply: Callable[[Tensor, Sequence[Use]], object],
) -> Callable[[Tensor, Tensor, Sequence[Use]], tuple[Tensor, Sequence[int]]]:
    """A function of logits [rows, vocab], the rows to change and their uses, that gives these rows, changed, and the
    numbers of those that are broken. It raises ValueError where what `apply` leaves cannot be sampled at all."""

    @wraps(apply)
    def checked(logits: Tensor, index: Tensor, uses: Sequence[Use]) -> tuple[Tensor, Sequence[int]]:
        some = logits.index_select(0, index)
        shape = some.shape
        apply(some, uses)
        if (some.shape, some.dtype, some.device) != (shape, logits.dtype, logits.device):
            found = f"{some.dtype} {list(some.shape)} on {some.device}"
            raise ValueError(f"it turned logits {logits.dtype} {list(shape)} on {logits.device} into {found}")
        nan = some.isnan().any(-1)
        if not nan.any():
            return some, ()
        nan &= ~logits.index_select(0, index).isnan().any(-1)  # those that the model gave are not its fault
        if nan.all():
            raise ValueError(NAN)
        return some, nan.nonzero().flatten().tolist()

    return checked
