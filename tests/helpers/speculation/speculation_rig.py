"""Engines with drafters of the tests: one that knows the right tokens and spoils some of its drafts."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from quire.records import Draft, Drafter, DrafterImpl, DraftQuery, Registry

Outputs = dict[tuple[int, ...], list[list[int]]]
"""The outputs of a prompt: those that began with the same tokens are continued as they were."""


class ReplayDrafter:
    """Continues each sequence as the first known output that begins like it. `spoiled`: share of wrong tokens."""

    def __init__(self, outputs: Outputs, spoiled: float, vocab: int = 256) -> None:
        self.outputs, self.spoiled, self.vocab = outputs, spoiled, vocab
        self.rng = random.Random(1)
        self.live: set[int] = set()
        self.num_drafted = 0

    def propose(self, queries: Sequence[DraftQuery]) -> Sequence[Draft]:
        return [self._draft(query) for query in queries]

    def _draft(self, query: DraftQuery) -> Draft:
        self.live.add(query.seq_id)
        prompt, output = query.token_ids[: query.prompt_len], list(query.token_ids[query.prompt_len :])
        known = next((each for each in self.outputs.get(tuple(prompt), ()) if each[: len(output)] == output), [])
        drafts = known[len(output) : len(output) + query.max_drafts]
        drafts = [self.rng.randrange(self.vocab) if self.rng.random() < self.spoiled else each for each in drafts]
        self.num_drafted += len(drafts)
        return Draft(drafts)

    def end(self, seq_ids: Sequence[int]) -> None:
        self.live.difference_update(seq_ids)


def with_drafter(found: Registry, drafter: DrafterImpl, name: str = "replay") -> Registry:
    """A registry with one drafter more."""
    drafters: Mapping[str, Drafter] = found.by_hook("quire_drafters")
    more = MappingProxyType({**drafters, name: Drafter(name, lambda context: drafter)})
    records = MappingProxyType({**found.records, "quire_drafters": more})
    origin = MappingProxyType({**found.origin, ("quire_drafters", name): "tests"})
    return replace(found, records=records, origin=origin)
