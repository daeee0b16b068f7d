"""Conformance of drafters, on sequences that repeat themselves now and then."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from quire.params.sampling import SamplingParams
from quire.records import Draft, Drafter, DrafterContext, DrafterImpl, DraftQuery
from quire_testing.require import require

NUM_SEQS = 4
NUM_CALLS = 24
"""Calls of `propose` for each sequence."""
MAX_MODEL_LEN = 512
NUM_ROUNDS = 8
"""How often sequences begin and end before and between two counts of what the drafter holds."""


@dataclass
class _Seq:
    """A sequence: a phrase again and again, of which some tokens differ."""

    number: int
    tokens: list[int]
    phrase: list[int]
    rng: random.Random
    vocab_size: int

    @classmethod
    def begin(cls, number: int, seed: int, vocab_size: int) -> _Seq:
        rng = random.Random(f"{seed} {number}")
        phrase = [rng.randrange(vocab_size) for _ in range(rng.randint(3, 7))]
        return cls(number, phrase * 3, phrase, rng, vocab_size)

    def grow(self, draft: Sequence[int]) -> None:
        """Append some of the drafted tokens, and one more."""
        self.tokens += draft[: self.rng.randint(0, len(draft))]
        repeats = self.rng.random() < 0.8
        at = len(self.tokens) % len(self.phrase)
        self.tokens.append(self.phrase[at] if repeats else self.rng.randrange(self.vocab_size))


@dataclass(frozen=True)
class _Player:
    """Calls a drafter as the engine does, and checks each answer."""

    vocab_size: int
    max_drafts: int
    seed: int

    def play(self, drafter: DrafterImpl, numbers: Iterable[int], first_id: int = 0) -> dict[int, list[list[int]]]:
        """The drafts of each sequence, which is known to the drafter as `first_id` plus its number."""
        seqs = [_Seq.begin(number, self.seed, self.vocab_size) for number in numbers]
        drafts: dict[int, list[list[int]]] = {seq.number: [] for seq in seqs}
        lengths = {seq.number: len(seq.tokens) for seq in seqs}
        for call in range(NUM_CALLS):
            queries = [self._query(seq, lengths[seq.number], first_id, call) for seq in seqs]
            for seq, draft in zip(seqs, self._proposed(drafter, queries), strict=True):
                drafts[seq.number].append(draft)
                seq.grow(draft)
        return drafts

    def _query(self, seq: _Seq, prompt_len: int, first_id: int, call: int) -> DraftQuery:
        return DraftQuery(
            seq_id=first_id + seq.number,
            token_ids=seq.tokens,
            prompt_len=prompt_len,
            max_drafts=1 + (seq.number + call) % self.max_drafts,
            params=SamplingParams(temperature=0),
            seed=seq.number,
        )

    def _proposed(self, drafter: DrafterImpl, queries: Sequence[DraftQuery]) -> list[list[int]]:
        before = [list(query.token_ids) for query in queries]
        try:
            drafts = drafter.propose(queries)
        except Exception as error:
            raise AssertionError(f"`propose` raised {type(error).__name__}: {error}") from error
        require(len(drafts) == len(queries), f"`propose` returned {len(drafts)} drafts for {len(queries)} sequences.")
        require(before == [list(query.token_ids) for query in queries], "`propose` changed the tokens of a sequence.")
        return [self._checked(query, draft) for query, draft in zip(queries, drafts, strict=True)]

    def _checked(self, query: DraftQuery, draft: Draft) -> list[int]:
        token_ids = list(draft.token_ids)
        most = query.max_drafts
        require(len(token_ids) <= most, f"A draft has {len(token_ids)} tokens; at most {most} were asked for.")
        require(
            all(type(each) is int and 0 <= each < self.vocab_size for each in token_ids),
            f"A draft has a token id that is no integer from 0 to {self.vocab_size - 1}: {token_ids}.",
        )
        chances = [1.0, *draft.chances, 0.0]
        require(
            len(chances) in (2, len(token_ids) + 2) and all(high >= low for high, low in pairwise(chances)),
            f"`chances` of {len(token_ids)} drafts are not as many descending numbers from 0 to 1: {draft.chances}.",
        )
        if draft.probs is not None:
            shape = (len(token_ids), self.vocab_size)
            require(tuple(draft.probs.shape) == shape, f"`probs` has shape {tuple(draft.probs.shape)}, not {shape}.")
            sums = draft.probs.sum(-1)
            require(bool((draft.probs >= 0).all() and ((sums - 1).abs() < 1e-3).all()), "`probs` are no distributions.")
        return token_ids


def check_drafter(
    record: Drafter,
    *,
    settings: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    target: Any = None,
    vocab_size: int = 256,
    max_drafts: int = 4,
    seed: int = 0,
) -> None:
    """Drafts are within bounds and depend only on the sequence, and the state of ended sequences is freed.

    settings: those of --speculative-config. target: the loaded model, for drafters that use it. vocab_size: its
    vocabulary. A drafter may learn from ended sequences if what it keeps is bounded: by that of 32 sequences here.
    Sequences come for the first time, with drafted and other tokens, and again after `end`; some ids that `end` gets
    are unknown.
    """
    player = _Player(vocab_size, max_drafts, seed)

    def build() -> DrafterImpl:
        return record.build(
            DrafterContext(
                options=options or {},
                settings=settings or {},
                target=target,
                max_drafts=max_drafts,
                max_num_seqs=NUM_SEQS,
                max_model_len=MAX_MODEL_LEN,
            )
        )

    together = player.play(build(), range(NUM_SEQS))
    require(
        any(draft for drafts in together.values() for draft in drafts),
        f"It drafted nothing in {NUM_SEQS * NUM_CALLS} calls for sequences that repeat themselves.",
    )
    require(player.play(build(), range(NUM_SEQS)) == together, "The same sequences get different drafts.")
    for number in range(NUM_SEQS):
        alone = player.play(build(), [number])[number]
        require(alone == together[number], "The drafts of a sequence depend on other running sequences.")
    _check_end(player, build())


def _check_end(player: _Player, drafter: DrafterImpl) -> None:
    held = []
    for count in range(2):
        for number in range(NUM_ROUNDS):
            first_id = NUM_SEQS * (number + NUM_ROUNDS * count)
            player.play(drafter, range(NUM_SEQS), first_id)
            _end(drafter, range(first_id, first_id + NUM_SEQS))
        held.append(_num_held(drafter))
    require(
        held[1] <= held[0],
        f"The state of ended sequences is not freed: the drafter held {held[0]} objects, and {held[1]} after "
        f"{NUM_SEQS * NUM_ROUNDS} more sequences had ended.",
    )
    player.play(drafter, range(NUM_SEQS))  # ids that have ended: a sequence may come back
    _end(drafter, [0, 10**9])


def _end(drafter: DrafterImpl, seq_ids: Iterable[int]) -> None:
    try:
        drafter.end(list(seq_ids))
    except Exception as error:
        raise AssertionError(f"`end` raised {type(error).__name__}: {error}") from error


def _num_held(drafter: DrafterImpl) -> int:
    """Objects that can be reached from a drafter, without code and without numbers, which are too many."""
    seen: dict[int, object] = {}
    waiting: list[object] = [drafter]
    while waiting:
        each = waiting.pop()
        if id(each) not in seen and not isinstance(each, _NOT_COUNTED):
            seen[id(each)] = each
            waiting += gc.get_referents(each)
    return len(seen)


_NOT_COUNTED = (type, ModuleType, FunctionType, BuiltinFunctionType, int, float, str, bytes)
