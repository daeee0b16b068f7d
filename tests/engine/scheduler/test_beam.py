"""Beam search over scripted candidates."""

from math import log

from fake_runner import PretendRunner, beams_alone
from scheduler_rig import EOS, Rig

from quire.params.sampling import BeamSearchParams
from quire.types import Prompt, Request, Sample


class Tree(PretendRunner):
    """Candidates by output so far, with their probabilities, or below 0 with their logprobs."""

    branches: dict[tuple[int, ...], dict[int, float]]

    def sample(self, row, entry):
        output = tuple(row.tokens[len(row.start.prompt_ids) :])
        options = self.branches.get(output, {5: 0.5, 6: 0.3, 7: 0.2})
        return Sample(-1, candidates=tuple((token, log(p) if p > 0 else p) for token, p in options.items()))


def search(branches, *, rounds=2, **params):
    """(output, finish reason) of the beams, the best first, and the rig."""
    rig = Rig(runner=type("Forest", (Tree,), {"branches": branches}))
    params = {"beam_width": 2, "max_tokens": rounds} | params
    rig.add([1, 2, 3], BeamSearchParams(**params))
    rig.run()
    return [(delta.token_ids, delta.finish_reason) for delta in rig.deltas], rig


GARDEN = {(): {1: 0.6, 2: 0.4}, (1,): {3: 0.5, 4: 0.5}, (2,): {3: 0.9, 4: 0.1}}


def test_a_second_choice_wins_if_it_leads_to_something_better():
    found, rig = search(GARDEN)
    assert found == [((2, 3), "length"), ((1, 3), "length")]
    assert rig.deltas[0].cumulative_logprob == log(0.4) + log(0.9)
    assert [delta.index for delta in rig.deltas] == [0, 1]
    assert rig.deltas[0].num_cached_tokens == 0


def test_one_beam_is_greedy():
    assert search(GARDEN, beam_width=1)[0] == [((1, 3), "length")]


def test_the_length_penalty_decides_between_an_early_end_and_a_longer_text():
    tree = {(): {EOS: 0.2, 1: 0.8}, (1,): {3: 0.1, 4: 0.05}}
    assert search(tree, length_penalty=0.0)[0][0] == ((EOS,), "stop"), "the more likely text"
    assert search(tree, length_penalty=1.0)[0][0] == ((1, 3), "length"), "the more likely tokens"
    assert search(tree, length_penalty=-1.0)[0][0] == ((EOS,), "stop")


def test_equal_scores_are_ordered_by_the_earlier_rank_of_their_beams():
    tree = {
        (): {1: -1, 2: -2},
        (1,): {3: -5, 9: -9},
        (2,): {4: -1, 9: -9},
        (1, 3): {5: -1, 9: -9},
        (2, 4): {6: -4, 9: -9},
    }
    found, rig = search(tree, rounds=3)
    assert [output for output, _ in found] == [(2, 4, 6), (1, 3, 5)]
    assert [delta.cumulative_logprob for delta in rig.deltas] == [-7, -7]


def test_end_of_text_is_a_token_like_others_when_it_is_ignored():
    found, _ = search({(): {EOS: 0.9, 1: 0.1}}, ignore_eos=True)
    assert found == [((EOS, 5), "length"), ((EOS, 6), "length")]


def test_a_search_that_nothing_can_change_ends_early():
    sure = {(): {EOS: 0.9, 1: 0.1}, (1,): {EOS: 0.9, 3: 0.01}}
    found, rig = search(sure, rounds=50, length_penalty=0.0)
    assert [output for output, _ in found] == [(EOS,), (1, EOS)]
    assert rig.stats().num_steps_total == 2
    _, rig = search(sure, rounds=50, length_penalty=1.0)
    assert rig.stats().num_steps_total == 50, "a longer text could still have the better mean"


def test_beams_that_are_no_longer_needed_give_back_their_pages():
    everything_from_one = {(): {1: 0.9, 2: 0.1}, (1,): {3: 0.5, 4: 0.5}, (2,): {3: 0.1, 4: 0.1}}
    _, rig = search(everything_from_one, rounds=4)
    assert sum(len(plan.ended) for plan in rig.plans) == sum(len(plan.started) for plan in rig.plans)
    assert rig.pool.num_used == 0
    assert rig.runner.num_copies > 0


def test_fewer_candidates_than_beams_still_answer_for_every_beam():
    found, _ = search({(): {1: 1.0}, (1,): {EOS: 1.0}}, beam_width=3)
    assert found == [((1, EOS), "stop"), ((), "abort"), ((), "abort")]


def test_beams_survive_a_pool_and_places_too_few_for_all_of_them():
    params = BeamSearchParams(beam_width=4, max_tokens=6, ignore_eos=True)
    prompt = Prompt(token_ids=(4, 2, 7))
    expected = beams_alone(Request(id="", prompt=prompt, params=params), frozenset(), 200)
    for host_pages in (0, 9):
        for num_pages, places in ((8, 4), (8, 2), (5, 1), (30, 3)):
            rig = Rig(num_pages=num_pages, page_size=2, host_pages=host_pages, max_num_seqs=places)
            for name in "abc":
                rig.add(prompt.token_ids, params, request_id=name)
            rig.run()
            for name in "abc":
                found = [(d.token_ids, d.finish_reason) for d in rig.deltas if d.request_id == name]
                assert found == expected
