"""The drafter that a plugin built, with its proposals checked."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import index

from quire.errors import QuireError
from quire.records import Draft, DrafterImpl, DraftQuery, ReadsHidden


@dataclass(frozen=True, slots=True)
class BuiltDrafter:
    """The drafter of a plugin. max_drafts: per sequence and step. vocab_size: of the model."""

    plugin: str
    built: DrafterImpl
    max_drafts: int
    vocab_size: int

    @property
    def name(self) -> str:
        """Of what is called, for errors."""
        return f"{type(self.built).__qualname__}.propose"

    @property
    def memory_bytes(self) -> int:
        """What it takes of the memory of the model's device."""
        return int(getattr(self.built, "memory_bytes", 0))

    @property
    def reads_hidden(self) -> ReadsHidden | None:
        """The hidden states that it reads; None if it reads none."""
        return getattr(self.built, "reads_hidden", None)

    @property
    def adapter_names(self) -> Collection[str]:
        """The adapters of the drafter that requests may choose."""
        return getattr(self.built, "adapter_names", ())

    def __call__(self, queries: Sequence[DraftQuery]) -> dict[int, Draft]:
        """Drafts by seq id. Raises ValueError, TypeError or AttributeError if they are not what was asked for."""
        try:
            drafts = self.built.propose(queries)
        except QuireError as error:  # it would be taken for an intended answer, which there is none of
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        if len(drafts) != len(queries):
            raise ValueError(f"{len(drafts)} drafts for {len(queries)} sequences")
        found: dict[int, Draft] = {}
        for query, draft in zip(queries, drafts, strict=True):
            if len(draft.token_ids) > query.max_drafts:
                raise ValueError(f"{len(draft.token_ids)} tokens drafted, more than the {query.max_drafts} asked for")
            token_ids, probs, chances = list(map(index, draft.token_ids)), draft.probs, list(map(float, draft.chances))
            if token_ids:
                if not 0 <= min(token_ids) <= max(token_ids) < self.vocab_size:
                    raise ValueError(f"a drafted token id is outside 0 … {self.vocab_size - 1}")
                if probs is not None and probs.shape != (len(token_ids), self.vocab_size):
                    raise ValueError(f"probabilities of {len(token_ids)} drafts have the shape {list(probs.shape)}")
                if chances and not _are_chances(chances, len(token_ids)):
                    raise ValueError(f"chances are not {len(token_ids)} descending numbers from 0 to 1")
                found[query.seq_id] = Draft(token_ids, probs, chances)
        return found


def _are_chances(chances: Sequence[float], count: int) -> bool:
    return len(chances) == count and all(high >= low for high, low in pairwise((1.0, *chances, 0.0)))
