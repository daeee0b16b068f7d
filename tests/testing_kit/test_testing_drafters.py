"""The check of drafters for plugin authors says yes and no, each for the right reason."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from quire.hooks.registry import load
from quire.records import Draft, Drafter, DrafterContext, DraftQuery
from quire_testing import check_drafter


class Echo:
    """Drafts the newest token again. Subclasses break a rule."""

    def __init__(self, context: DrafterContext) -> None:
        self.context = context
        self.states: dict[int, list[int]] = {}

    def propose(self, queries: Sequence[DraftQuery]) -> Sequence[Draft]:
        return [self.draft(query) for query in queries]

    def draft(self, query: DraftQuery) -> Draft:
        self.states[query.seq_id] = [query.token_ids[-1]]
        return Draft(self.states[query.seq_id] * query.max_drafts)

    def end(self, seq_ids: Sequence[int]) -> None:
        for seq_id in seq_ids:
            self.states.pop(seq_id, None)


def changed(**methods: Any) -> Drafter:
    return Drafter("changed", type("Changed", (Echo,), methods))


def drafting(draft: Callable[[Any, DraftQuery], Draft]) -> Drafter:
    return changed(draft=draft)


@pytest.mark.parametrize("settings", [{}, {"prompt_lookup_min": 1, "prompt_lookup_max": 8}])
def test_prompt_lookup_passes(settings: dict[str, int]) -> None:
    check_drafter(load([]).by_hook("quire_drafters")["ngram"], settings=settings)


def test_a_small_drafter_passes() -> None:
    check_drafter(Drafter("echo", Echo))


def of_all(drafter: Echo, query: DraftQuery) -> Draft:
    drafter.states.setdefault(-1, []).append(query.token_ids[-1])
    return Draft([drafter.states[-1][len(drafter.states[-1]) // 2]])


def _keep(drafter: Echo, seq_ids: Sequence[int]) -> None:
    del drafter, seq_ids


def _only_known(drafter: Echo, seq_ids: Sequence[int]) -> None:
    for seq_id in seq_ids:
        del drafter.states[seq_id]


COUNTER = iter(range(10**6))


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (drafting(lambda self, query: Draft([0] * (query.max_drafts + 1))), "at most 1 were asked for"),
        (drafting(lambda self, query: Draft([256])), "no integer from 0 to 255"),
        (drafting(lambda self, query: Draft([-1])), "no integer from 0 to 255"),
        (drafting(lambda self, query: Draft([1.0])), "no integer from 0 to 255"),  # type: ignore[list-item]
        (drafting(lambda self, query: Draft([1], chances=[0.9, 0.8])), "`chances` of 1 drafts are not"),
        (drafting(lambda self, query: Draft([1], chances=[1.5])), "descending numbers from 0 to 1"),
        (drafting(lambda self, query: Draft([next(COUNTER) % 256])), "The same sequences get different drafts"),
        (drafting(of_all), "depend on other running sequences"),
        (drafting(lambda self, query: Draft()), "It drafted nothing"),
        (drafting(lambda self, query: Draft([query.token_ids[-1], query.token_ids.pop()][:1])), "changed the tokens"),  # type: ignore[attr-defined]
        (drafting(lambda self, query: 1 // 0), "`propose` raised ZeroDivisionError"),  # type: ignore[return-value]
        (changed(propose=lambda self, queries: []), "returned 0 drafts for 4 sequences"),
        (changed(end=_keep), "The state of ended sequences is not freed"),
        (changed(end=_only_known), "`end` raised KeyError: 1000000000"),
    ],
)
def test_a_broken_rule_is_found(record: Drafter, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_drafter(record)


def test_probabilities_must_be_those_of_the_drafted_tokens() -> None:
    import torch

    def with_probs(rows: int, total: float) -> Drafter:
        return drafting(lambda self, query: Draft([1], torch.full((rows, 256), total / 256)))

    check_drafter(with_probs(1, 1.0))
    with pytest.raises(AssertionError, match=r"`probs` has shape \(2, 256\), not \(1, 256\)"):
        check_drafter(with_probs(2, 1.0))
    with pytest.raises(AssertionError, match="are no distributions"):
        check_drafter(with_probs(1, 0.5))


def test_a_drafter_may_learn_from_ended_sequences_within_bounds() -> None:
    class Learning(Echo):
        def end(self, seq_ids: Sequence[int]) -> None:
            super().end(seq_ids)
            self.answers = [*getattr(self, "answers", []), *([seq_id] for seq_id in seq_ids)][-10:]

    check_drafter(Drafter("learning", Learning))
