"""Which pages seqs share, and when a shared page is copied."""

import pytest
from scheduler_rig import Rig, ScriptedRunner

from quire.types import AdapterRef, Media, WeightedAdapter


def test_equal_beginnings_are_computed_once():
    rig = Rig()
    rig.add(range(12))
    rig.run()
    rig.add(range(14))
    (delta,) = rig.step()
    assert (delta.num_cached_tokens, rig.counts()) == (12, {1: 2})
    stats = rig.stats()
    assert (stats.num_cached_tokens_total, stats.num_queried_tokens_total) == (12, 26)


def test_the_last_prompt_token_is_computed_even_if_it_is_cached():
    rig = Rig()
    for expected in ({0: 12}, {1: 4}):
        rig.add(range(12), {"max_tokens": 1})
        rig.step()
        assert rig.counts() == expected


def test_generated_tokens_are_found_by_the_next_turn_of_a_conversation():
    rig = Rig(runner=ScriptedRunner)
    rig.add(range(6), {"max_tokens": 7})
    rig.run()
    rig.add([*range(6), *[5] * 7, 1, 2])
    (delta,) = rig.step()
    assert delta.num_cached_tokens == 12


@pytest.mark.parametrize(
    "other",
    [
        {"adapters": (WeightedAdapter(AdapterRef(name="a")),)},
        {"cache_salt": "s"},
        {"media": (Media(modality="image", start=1, length=2, digest="p", tensors={}),)},
    ],
)
def test_pages_are_shared_only_where_k_and_v_are_equal(other):
    rig = Rig()
    rig.add(range(12))
    rig.run()
    rig.add(range(12), **other)
    (delta,) = rig.step()
    assert delta.num_cached_tokens == 0
    rig.run()
    rig.add(range(12), **other)
    rig.step()
    assert rig.last("r2").num_cached_tokens == 8


def test_prompt_logprobs_are_computed_and_not_looked_up():
    rig = Rig()
    rig.add(range(10))
    rig.run()
    request = rig.add(range(10), {"prompt_logprobs": 0, "max_tokens": 1})
    rig.run()
    delta = rig.last(request)
    assert delta.num_cached_tokens == 0
    assert [entry and entry.token_id for entry in delta.prompt_logprobs] == [None, *range(1, 10)]


@pytest.mark.parametrize(("prompt_len", "copies"), [(10, 2), (9, 0)])
def test_several_answers_share_the_prompt_and_copy_only_its_last_page_when_they_write_into_it(prompt_len, copies):
    rig = Rig(caching=False)
    rig.add(range(prompt_len), {"n": 3})
    rig.step()
    assert rig.counts() == {0: prompt_len - 1}
    assert not rig.plan.chunks[0].samples
    rig.step()
    assert rig.counts() == {0: 1, 1: 1, 2: 1}
    assert len(rig.plan.copies) == copies
    assert rig.pool.num_used == 2 + 3
    assert len({start.seed for plan in rig.plans for start in plan.started}) == 3
    rig.run()
    assert sorted(rig.order()) == ["r0"] * 3


def test_answers_for_which_there_is_no_place_wait_and_find_the_prompt_in_the_cache():
    rig = Rig(max_num_seqs=2)
    rig.add(range(12), {"n": 5})
    rig.run()
    assert len(rig.order()) == 5
    assert max(len(plan.chunks) for plan in rig.plans) == 2


def test_places_are_kept_for_the_forks_of_a_prompt_that_is_being_computed():
    rig = Rig(max_num_seqs=4, max_num_batched_tokens=5)
    rig.add(range(10), {"n": 3})
    rig.add([1], {"max_tokens": 9})
    rig.add([2])
    rig.step()
    rig.step()
    assert set(rig.counts()) == {0, 1}
    rig.step()
    assert set(rig.counts()) == {0, 1, 3, 4}, "the forks run before the third request"
