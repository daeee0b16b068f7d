"""Plugin code inside sampling: logits processors and grammar matchers, and what happens when they raise.

A processor is built once per model and started once per seq; rows that did not ask for it never meet
it. An exception fails the rows of the call it came from, is counted against the plugin, and nothing else
stops. It knows no formula and no grammar.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quire.counting import call_plugin
from quire.errors import BadRequest, PluginFailed, QuireError
from quire.records import Context, Grammar, LogitsProcessor, Matcher, ProcessesLogits, Registry
from quire.sampling import SamplingParams

HOOK = "quire_logits_processors"
GRAMMARS = "quire_grammar_backends"


@dataclass(slots=True, eq=False)
class Use:
    """One seq's use of one processor; what `apply` sees as a row."""

    processor: str
    state: Any
    output_ids: Sequence[int]


@dataclass(slots=True, eq=False)
class Constraint:
    """One seq's place in a grammar, and the plugin that answers for it. ended: an end-of-text token has come."""

    plugin: str
    matcher: Matcher
    ended: bool = False

    @property
    def done(self) -> bool:
        """Whether nothing may follow."""
        return self.ended or self.matcher.done


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

    def start(self, params: SamplingParams, output_ids: Sequence[int]) -> tuple[Use, ...]:
        """The seq's uses: of those processors whose `start` gives a state. Raises QuireError if one fails."""
        if not self._built:
            return ()
        states = {name: self._call(name, built.start, params) for name, built in self._built.items()}
        return tuple(Use(name, state, output_ids) for name, state in states.items() if state is not None)

    def apply(self, logits: Tensor, uses: Sequence[tuple[int, Use]]) -> dict[int, str]:
        """Let processors change `logits` [rows, vocab] in place; what went wrong, by row.

        Rows that use the same processor reach it in one call, in the order of the batch; processors take
        turns in the order in which they were loaded.
        """
        failed: dict[int, str] = {}
        for name, processor in self._built.items():
            mine = [(row, use) for row, use in uses if use.processor == name and row not in failed]
            if not mine:
                continue
            index = torch.tensor([row for row, _ in mine], device=logits.device)
            some = logits.index_select(0, index)
            try:
                self._call(name, processor.apply, some, [use for _, use in mine])
            except QuireError as error:
                failed.update((row, error.message) for row, _ in mine)
            else:
                logits.index_copy_(0, index, some)
        return failed


class Constraints:
    """Grammar matchers of seqs: where they begin, what they forbid, how they follow the output.

    eos_ids: tokens that may come whenever a grammar says that the text may end; matchers never see them.
    """

    def __init__(self, registry: Registry, eos_ids: Collection[int] = ()) -> None:
        self._registry = registry
        self._eos_ids = sorted(eos_ids)

    def start(self, plugin: str, grammar: Grammar, output_ids: Sequence[int]) -> Constraint:
        """A matcher that has followed what the seq wrote so far. Raises QuireError if the plugin fails."""
        matcher: Matcher = call_plugin(self._registry, plugin, grammar.start)
        constraint = Constraint(plugin, matcher)
        for token in output_ids:
            self.follow(constraint, token)
        return constraint

    def follow(self, constraint: Constraint, token: int) -> None:
        """Tell the matcher of a new token. Raises PluginFailed if it refuses what its own mask allowed."""
        if token in self._eos_ids:
            constraint.ended = True
            return
        if not call_plugin(self._registry, constraint.plugin, constraint.matcher.accept, token):
            raise PluginFailed(
                f"The grammar of plugin {constraint.plugin!r} refused token {token}, which it had allowed."
            )

    def apply(self, logits: Tensor, constraints: Sequence[tuple[int, Constraint]]) -> dict[int, str]:
        """Mask what the grammars forbid in `logits` [rows, vocab], in place; what went wrong, by row."""
        failed: dict[int, str] = {}
        for row, constraint in constraints:
            mask = torch.zeros(logits.shape[1], dtype=torch.bool)
            try:
                call_plugin(self._registry, constraint.plugin, self._fill, constraint.matcher, mask)
            except QuireError as error:
                failed[row] = error.message
            else:
                logits[row].masked_fill_(~mask.to(logits.device), -torch.inf)
        return failed

    def _fill(self, matcher: Matcher, mask: Tensor) -> None:
        matcher.fill(mask)
        if self._eos_ids and matcher.complete:
            mask[self._eos_ids] = True
