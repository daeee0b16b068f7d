"""What changes logits, or says which tokens may follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from quire.records.context import Context

if TYPE_CHECKING:
    from torch import Tensor

    from quire.sampling import SamplingParams
    from quire.structured import Structured


class ProcessorRow(Protocol):
    """One row of a batch as a logits processor sees it."""

    state: Any
    output_ids: Sequence[int]


class ProcessesLogits(Protocol):
    """Changes logits of the rows that asked for it."""

    def start(self, params: SamplingParams) -> Any | None:
        """State for a seq, or None when its request does not use this processor (costs nothing)."""
        ...

    def apply(self, logits: Tensor, rows: Sequence[ProcessorRow]) -> None:
        """Change `logits` [rows, vocab] in place; row i belongs to `rows[i]`."""
        ...


@dataclass(frozen=True)
class LogitsProcessor:
    """`fields`: extra request fields it understands, by type; they arrive in `SamplingParams.extra`."""

    name: str
    fields: Mapping[str, type]
    build: Callable[[Context], ProcessesLogits]


class Matcher(Protocol):
    """Where one seq stands in a grammar."""

    @property
    def done(self) -> bool:
        """Whether nothing but the end of text may follow."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the text may end here; then the host allows the end-of-text ids beside the mask."""
        ...

    def fill(self, mask: Tensor) -> None:
        """Set `mask`, int32 [ceil(vocab / 32)], to the token ids allowed next: id i is bit i % 32 of entry i // 32."""
        ...

    def accept(self, token_id: int) -> bool:
        """Advance; False if the token is not allowed here."""
        ...

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens."""
        ...

    def forced(self) -> Sequence[int]:
        """Tokens of which one after another must follow, so that the model need not be asked; () is always right.

        Of each the mask allows nothing else where it is the next one.
        """
        ...


class Grammar(Protocol):
    """A compiled constraint, shared by all seqs that use it.

    It may say what it holds in memory: `num_bytes`, an int, which may grow. Otherwise that is estimated by its source.
    """

    def start(self) -> Matcher:
        """A matcher at the beginning."""
        ...


class CompilesGrammars(Protocol):
    """A structured-output back end for one tokenizer."""

    def compile(self, asked: Structured) -> Grammar:
        """Compile, in a worker. The host has bounded the source's size and sees to `backend` and `after`.

        Raises `quire.errors.BadRequest` for a source that is wrong, and its subclass `CannotConstrain` for one that
        this back end cannot honour in every detail, or not within reason: then another one is asked.
        """
        ...


class CompilesElsewhere(Protocol):
    """A structured-output back end that is isolated."""

    def check(self, asked: Structured) -> None:
        """In the host's process, and quickly: raise as `compile` would for what need not be tried."""
        ...

    def warm_up(self) -> None:
        """In the other process, once before `compile`: load what takes its time, which is no request's."""
        ...

    def compile(self, asked: Structured) -> Any:
        """As that of `CompilesGrammars`, in another process; what it gives is pickled."""
        ...

    def restore(self, compiled: Any) -> Grammar:
        """In the host's process: a grammar from what `compile` gave elsewhere."""
        ...


class TriesElsewhere(CompilesGrammars, Protocol):
    """A structured-output back end some of whose sources are tried in another process first."""

    def warm_up(self) -> None:
        """In the other process, once before `attempt`: load what takes its time, which is no request's."""
        ...

    def attempt(self, asked: Structured) -> Any:
        """In another process: compile, and give what `finish` needs; it is pickled. Raises as `compile` does."""
        ...

    def finish(self, attempted: Any) -> Grammar:
        """In the host's process: a grammar of what `attempt` gave, with as little Python as can be."""
        ...


@dataclass(frozen=True)
class GrammarBackend:
    """`kinds`: the kinds of `quire.structured.Structured` it compiles. Of several the highest priority is asked first.

    isolated: compile in a process of its own, which is ended when time is up, since nothing bounds the work. It is
    built there and here: `build` and what `compile` gives there are picklable; `restore` makes a grammar of it here.
    doubtful: a back end that is not isolated may have constraints tried in such a process before they are compiled
    here: those of which this says, in microseconds, that they may take long; None = none do.
    """

    name: str
    kinds: frozenset[str]
    build: Callable[[Context], CompilesGrammars | CompilesElsewhere | TriesElsewhere]
    priority: int = 0
    isolated: bool = False
    doubtful: Callable[[Structured], bool] | None = None
