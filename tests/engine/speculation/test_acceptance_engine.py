"""`rejection` and `typical` through the engine: greedy tokens stay, drafts with probabilities reach the sampler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import Rig, greedy, related_prompts, rig_of
from speculation_rig import ReplayDrafter, with_drafter

from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.records import Draft, DraftQuery
from quire_testing.tiny import VOCAB_SIZE

PROMPTS = related_prompts(6, seed=2)
LIKELY = 65
SAMPLED = SamplingParams(temperature=1.0, seed=5, max_tokens=16, ignore_eos=True, logit_bias={LIKELY: 5.0})
"""About every third token is LIKELY."""


class SoftDrafter(ReplayDrafter):
    """Says that it drew its drafts from distributions with so much of `certainty` at the draft, of this width.

    Where it does not know the output it drafts LIKELY.
    """

    def __init__(self, certainty: float, width: int = 0) -> None:
        super().__init__({}, 0.2, VOCAB_SIZE)
        self.certainty, self.width = certainty, width

    def propose(self, queries: Sequence[DraftQuery]) -> Sequence[Draft]:
        known = super().propose(queries)
        return [
            self._soft(draft if draft.token_ids else Draft([LIKELY] * query.max_drafts))
            for query, draft in zip(queries, known, strict=True)
        ]

    def _soft(self, draft: Draft) -> Draft:
        width = self.width or self.vocab
        probs = torch.full((len(draft.token_ids), width), (1 - self.certainty) / (width - 1))
        probs.scatter_(1, torch.tensor(draft.token_ids)[:, None] % width, self.certainty)
        return Draft(draft.token_ids, probs)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[int]]:
    with rig_of(folder) as rig:
        return rig.tokens(PROMPTS * 2, [greedy(16, ignore_eos=True)] * 6 + [SAMPLED] * 6)


def drafting(folder: Path, drafter: ReplayDrafter, acceptance: str) -> Any:
    config = {"method": "replay", "num_speculative_tokens": 3, "adaptive": False, "acceptance": acceptance}
    found = with_drafter(registry.load(None), drafter)
    sizes = {"page_size": 4, "max_num_batched_tokens": 128}  # drafts for everyone
    return rig_of(folder, found, speculative_config=config, **sizes)


def answers(rig: Rig, drafter: ReplayDrafter, expected: list[list[int]]) -> list[list[int]]:
    for prompt, tokens in zip(PROMPTS * 2, expected, strict=True):
        drafter.outputs.setdefault(tuple(prompt), []).append(tokens)
    found = rig.tokens(PROMPTS * 2, [greedy(16, ignore_eos=True)] * 6 + [SAMPLED] * 6)
    assert drafter.num_drafted > 50
    assert all(len(tokens) == 16 for tokens in found)
    return found


@pytest.mark.parametrize("acceptance", ["rejection", "typical"])
@pytest.mark.parametrize("certainty", [0.1, 0.999])
def test_greedy_tokens_are_exact_under_any_acceptance(
    folder: Path, expected: list[list[int]], acceptance: str, certainty: float
) -> None:
    drafter = SoftDrafter(certainty)
    with drafting(folder, drafter, acceptance) as rig:
        assert answers(rig, drafter, expected)[:6] == expected[:6]


def test_probabilities_of_drafts_decide_over_their_acceptance(folder: Path, expected: list[list[int]]) -> None:
    steps, tokens = {}, {}
    for certainty in (0.005, 0.999):
        drafter = SoftDrafter(certainty)
        with drafting(folder, drafter, "rejection") as rig:
            tokens[certainty] = answers(rig, drafter, expected)
            steps[certainty] = rig.engine.stats().num_steps_total
    assert tokens[0.005][6:] != tokens[0.999][6:]
    assert steps[0.005] < steps[0.999], "min(1, p / q) is larger where q is smaller"


def test_probabilities_of_a_wrong_shape_are_the_drafters_fault(folder: Path, expected: list[list[int]]) -> None:
    drafter = SoftDrafter(0.5, width=200)
    with drafting(folder, drafter, "exact") as rig:
        assert answers(rig, drafter, expected) == expected
        assert rig.engine.stats().num_steps_total == 16, "there were no drafts"
