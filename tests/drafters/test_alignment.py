"""A copy is followed where it differs from its text, and estimated chances are those of right drafts."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from quire.params.sampling import SamplingParams
from quire.plugin import Draft, DraftQuery
from quire_drafters.alignment.aligned_text import MAX_OBSERVED, AlignedText
from quire_drafters.alignment.copy_place import WINDOW, CopyPlace
from quire_drafters.alignment.right_rates import CONTEXTS, RightRates
from quire_drafters.alignment.substitutions import Substitutions
from quire_drafters.lookup import NgramDrafter
from quire_drafters.suffix_decoding.recent_outputs import RecentOutputs
from quire_drafters.suffix_decoding.suffix_drafter import SuffixDrafter, SuffixSettings

TEXT = [100 + i for i in range(40)]


def followed(written: Sequence[int]) -> CopyPlace:
    """After `written`, with the first four tokens of TEXT as the match that it begins with."""
    place = CopyPlace()
    place.meet(4, 4)
    for token_id in written:
        place.step(TEXT, token_id, len(TEXT))
    return place


@pytest.mark.parametrize(
    ("written", "position", "run"),
    [
        (TEXT[4:10], 10, 10),
        ([*TEXT[4:10], 1], 10, 0),  # one token differs
        ([*TEXT[4:10], 1, TEXT[11], TEXT[12]], 13, 2),  # it was replaced
        ([*TEXT[4:10], 1, 2, 3, TEXT[10]], 11, 1),  # some were inserted
        ([*TEXT[4:10], TEXT[20]], 21, 1),  # some were left out
        ([*TEXT[4:10], TEXT[20], 1, TEXT[11]], 12, 1),  # which was wrong: the search begins at the last place again
    ],
)
def test_a_copy_is_found_again_after_a_difference(written: list[int], position: int, run: int) -> None:
    place = followed(written)
    assert (place.next, place.run) == (position, run)


def test_a_copy_is_found_again_within_a_window_only() -> None:
    place, text = CopyPlace(), list(range(3 * WINDOW))
    place.meet(4, 4)
    place.step(text, 2 * WINDOW, len(text))
    assert (place.next, place.run) == (4, 0)


def test_the_end_of_a_text_is_not_passed() -> None:
    place = followed(TEXT[4:])
    assert place.next == len(TEXT)
    place.step(TEXT, 1, len(TEXT))
    assert place.run == 0


@pytest.mark.parametrize(
    ("written", "length", "moves"),
    [
        (TEXT[4:10], 8, False),  # it agrees with ten tokens
        (TEXT[4:10], 11, True),
        ([1], 3, False),  # short, and the place was lost just now
        ([1] * 8, 2, True),
        ([1] * 8, 1, False),
        ([1], 4, True),
    ],
)
def test_a_better_match_moves_the_place(written: list[int], length: int, moves: bool) -> None:
    place = followed(written)
    place.meet(length, 30)
    assert (place.next == 30) == moves


def test_a_copy_of_a_follower_goes_its_own_way() -> None:
    place = followed(TEXT[4:10])
    other = place.copy()
    other.step(TEXT, 1, len(TEXT))
    assert (place.next, place.run, other.run) == (10, 10, 0)


def test_rates_approach_the_share_of_right_guesses_of_a_context() -> None:
    rates, rng = RightRates([0.5, 0.9]), random.Random(1)
    assert (rates.rate(0), rates.rate(CONTEXTS + 7)) == (0.5, 0.9)
    for _ in range(400):
        rates.add(1, rng.random() < 0.9)
        rates.add(2, rng.random() < 0.2)
    assert rates.rate(1) > 0.75
    assert rates.rate(2) < 0.4
    assert rates.rate(2) < rates.rate(3) < rates.rate(1), "an unknown context has the share of all"
    assert rates.rate(CONTEXTS + 7) == 0.9


def test_substitutions_are_those_written_last_and_less_trusted_when_they_do_not_come_again() -> None:
    found = Substitutions()
    assert found.find(1, 2) is None
    found.add(1, 2, 2)
    assert found.find(1, 2) is None, "nothing was substituted"
    found.add(1, 2, 5)
    assert found.find(1, 2) == found.find(9, 2) == (5, 3), "after another token too"
    for _ in range(20):
        found.add(1, 2, 2)
    assert found.find(1, 2) == (5, 0)
    found.add(1, 2, 6)
    assert (found.find(1, 2) or (0, 0))[0] == 6


def query(token_ids: Sequence[int], prompt_len: int, most: int = 8, seq_id: int = 1) -> DraftQuery:
    return DraftQuery(seq_id, token_ids, prompt_len, most, SamplingParams(), 0)


def drafters() -> list[NgramDrafter | SuffixDrafter]:
    return [NgramDrafter(1, 4), SuffixDrafter(SuffixSettings(), RecentOutputs(100, 1024))]


def played(drafter: NgramDrafter | SuffixDrafter, prompt: list[int], answer: list[int]) -> list[tuple[Draft, int]]:
    """The drafts for an answer that is written as it is, and how many tokens of each are right."""
    found, tokens = list[tuple[Draft, int]](), [*prompt, *answer[:1]]
    while len(tokens) < len(prompt) + len(answer):
        (draft,) = drafter.propose([query(tokens, len(prompt))])
        following = answer[len(tokens) - len(prompt) :]
        right = 0
        while right < min(len(draft.token_ids), len(following)) and draft.token_ids[right] == following[right]:
            right += 1
        found.append((draft, right))
        tokens += following[: right + 1]
    return found


def renamed(seed: int) -> tuple[list[int], list[int]]:
    """A text, and the same with one token replaced everywhere, in which it comes after different tokens."""
    prompt = random.Random(seed).sample(range(10, 900), 240)
    prompt[::8] = [7] * 30
    return prompt, [999 if token_id == 7 else token_id for token_id in prompt]


@pytest.mark.parametrize("drafter", drafters(), ids=["ngram", "suffix"])
def test_a_replaced_name_is_drafted(drafter: NgramDrafter | SuffixDrafter) -> None:
    prompt, answer = renamed(3)
    late = played(drafter, prompt, answer)[-20:]
    assert sum(right for _, right in late) > 2.5 * len(late)


@pytest.mark.parametrize("drafter", drafters(), ids=["ngram", "suffix"])
def test_chances_are_the_shares_of_right_drafts(drafter: NgramDrafter | SuffixDrafter) -> None:
    rng = random.Random(2)
    prompt = [rng.randrange(500) for _ in range(1500)]
    answer = [each if rng.random() < 0.85 else 1000 + rng.randrange(500) for each in prompt]  # none can be known
    found = played(drafter, prompt, answer)[30:]
    expected = sum(sum(draft.chances) for draft, _ in found)
    assert 0.75 < sum(right for _, right in found) / expected < 1.33


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(0, 60), st.integers(1, 8), st.integers(1, 5))
def test_drafts_are_within_bounds_for_any_text(tokens: list[int], prompt_len: int, most: int, piece: int) -> None:
    """Also for an empty prompt, and tokens that were not drafted; chances descend; the text is as it was."""
    prompt_len = min(prompt_len, len(tokens))
    for drafter in drafters():
        grown = tokens[:prompt_len]
        for begin in range(prompt_len, len(tokens), piece):
            grown += tokens[begin : begin + piece]
            (draft,) = drafter.propose([query(grown, prompt_len, most)])
            assert len(draft.chances) == len(draft.token_ids) <= most
            assert list(draft.chances) == sorted(draft.chances, reverse=True)
            assert all(0 < chance <= 1 for chance in draft.chances)
            assert set(draft.token_ids) <= set(grown)
        assert grown == tokens


def test_ids_of_the_largest_vocabularies_are_drafted() -> None:
    prompt = [2**31 - 1 - i for i in range(20)]
    for drafter in drafters():
        (draft,) = drafter.propose([query([*prompt, *prompt[:6]], 20)])
        assert list(draft.token_ids)[:3] == prompt[6:9]


def test_a_long_text_costs_a_step_what_a_short_one_does() -> None:
    """Only the newest tokens are learned from, and what is known of kinds, contexts and substitutions is bounded."""
    rng = random.Random(4)
    tokens = [rng.randrange(1000) for _ in range(100_000)]
    text = AlignedText(50_000)
    text.observe(tokens)
    assert text._rates._special == {}, "it came at once"
    assert text._text == tokens
    for i in range(0, 2 * MAX_OBSERVED, 8):
        tokens += [rng.randrange(1000) for _ in range(8)]
        text.meet((4, 1000 + i), (4, 60_000 + i))
        text.observe(tokens)
        text.draft([1, 2, 3], 4, 8, 0.02)
    assert text._text == tokens
    assert len(text._rates._special) <= 25 * 64
    assert len(text._substitutions._after) <= 2 * MAX_OBSERVED


def test_ended_sequences_are_forgotten() -> None:
    for drafter in drafters():
        drafter.propose([query(TEXT, 20, seq_id=i) for i in range(9)])
        drafter.end([*range(9), 77])
        assert not drafter._texts
