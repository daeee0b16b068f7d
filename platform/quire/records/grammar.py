"""Structured output: the record of a grammar back end, and the protocols of compiler, grammar and matcher.

A compiler makes a `Grammar` from a constraint. A grammar is shared by all sequences with that constraint, and
starts one `Matcher` for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from quire.records.context import Context

if TYPE_CHECKING:
    from torch import Tensor

    from quire.params.structured import StructuredSpec


class Matcher(Protocol):
    """The state of one sequence in a grammar."""

    @property
    def is_terminated(self) -> bool:
        """Whether only an end-of-text token may follow."""
        ...

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here. Quire then allows the end-of-text ids in addition to the mask."""
        ...

    def fill(self, mask: Tensor) -> None:
        """Set `mask`, int32 [ceil(vocab / 32)], to the ids allowed next: id i is bit i % 32 of entry i // 32."""
        ...

    def accept(self, token_id: int) -> bool:
        """Advance by one token; False if the grammar does not allow it here."""
        ...

    def rollback(self, count: int) -> None:
        """Undo the last `count` accepted tokens."""
        ...

    def jump_forward(self) -> Sequence[int]:
        """Token ids that must follow one after another, so that they need no sampling; () is always correct.

        At each of them the mask must allow that id and no other.
        """
        ...


class Grammar(Protocol):
    """A compiled constraint, shared by all sequences that use it.

    A grammar may have `num_bytes`, an int: its size in memory, which may grow. Without it Quire estimates the size
    from the length of the source.
    """

    def start(self) -> Matcher:
        """A matcher at the beginning of the text."""
        ...


class GrammarCompiler(Protocol):
    """A structured-output back end for one tokenizer."""

    def compile(self, asked: StructuredSpec) -> Grammar:
        """Compile in a worker thread. Quire has bounded the size of the source, and applies `backend` and `after`.

        Raises `quire.errors.BadRequest` for an invalid source, and its subclass `UnsupportedConstraint` for one that
        this back end cannot honour in every detail, or not within its limits: then Quire tries another back end.
        """
        ...


class IsolatedGrammarCompiler(Protocol):
    """A structured-output back end that compiles some or all constraints in a subprocess, which a timeout can end.

    Quire builds it in both processes. One for which `needs_process` may return False has `compile` as well.
    """

    def needs_process(self, asked: StructuredSpec) -> bool:
        """Whether to compile in the subprocess: the work may take long, or nothing bounds it.

        Called in Quire's own process, so it must be quick. May raise what `GrammarCompiler.compile` raises.
        """
        ...

    def warm_up(self) -> None:
        """In the subprocess, once before the first constraint: load what is slow to load."""
        ...

    def compile_in_worker(self, asked: StructuredSpec) -> Any:
        """In the subprocess: compile, and return a picklable form. Raises as `GrammarCompiler.compile` does."""
        ...

    def load(self, compiled: Any) -> Grammar:
        """In Quire's own process: a grammar from the result of `compile_in_worker`, with little Python work."""
        ...


@dataclass(frozen=True)
class GrammarBackend:
    """A compiler of constraints on the output.

    kinds: the kinds of `quire.params.structured.StructuredSpec` that it compiles. Of several back ends Quire tries the
    one of highest `priority` first.
    isolated: every constraint is compiled in the subprocess, which starts with the model; `build` must be picklable.
    """

    name: str
    kinds: frozenset[str]
    build: Callable[[Context], GrammarCompiler | IsolatedGrammarCompiler]
    priority: int = 0
    isolated: bool = False
