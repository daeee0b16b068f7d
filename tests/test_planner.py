"""What each step computes and who gives up pages, one rule at a time; `test_scheduler_random` tries all together."""

import logging

import pytest
from scheduler_rig import Rig, ScriptedRunner

from quire.errors import BadRequest
from quire.records import Context
from quire.types import AdapterRef, AdapterUse, Media, Plan
from quire_plugins.policies import ByPriority


def test_a_prompt_is_computed_and_then_one_token_per_step():
    rig = Rig()
    rig.add(range(10), {"max_tokens": 3})
    rig.run()
    assert [[(c.start, len(c.token_ids), c.samples) for c in plan.chunks] for plan in rig.plans] == [
        [(0, 10, True)],
        [(10, 1, True)],
        [(11, 1, True)],
        [],
    ]
    assert rig.plans[-1].ended == (0,)
    assert [len(plan.started) for plan in rig.plans] == [1, 0, 0, 0]


def test_an_idle_scheduler_plans_nothing():
    rig = Rig()
    assert not rig.scheduler.has_work
    assert rig.scheduler.plan() == Plan()


def test_a_long_prompt_is_split_and_those_who_generate_are_not_held_up():
    rig = Rig(max_num_batched_tokens=8)
    rig.add([1] * 3, {"max_tokens": 20})
    rig.step()
    rig.add([2] * 20)
    rig.step()
    assert rig.counts() == {0: 1, 1: 7}
    rig.add([3] * 3)
    rig.step()
    assert rig.counts() == {0: 1, 1: 7}
    rig.step()
    assert rig.counts() == {0: 1, 1: 6, 2: 1}
    rig.step()
    assert rig.counts() == {0: 1, 1: 1, 2: 2}


def test_a_running_prompt_leaves_a_token_for_each_seq_behind_it():
    rig = Rig(max_num_batched_tokens=8)
    rig.add([1] * 30)
    rig.step(max_tokens=3)
    rig.add([2] * 2)
    rig.step()
    assert rig.counts() == {0: 8}, "nothing is left for a newcomer"
    rig = Rig(max_num_batched_tokens=8)
    rig.add([1] * 9)
    rig.add([2] * 3)
    rig.step()
    rig.step()
    assert rig.counts() == {0: 1, 1: 3}


def test_a_step_takes_no_more_tokens_than_the_caller_allows_and_nobody_is_forgotten():
    rig = Rig()
    for i in range(5):
        rig.add([i], {"max_tokens": 4})
    rig.step()
    planned = [set(rig.counts())]
    for _ in range(5):
        rig.step(max_tokens=2)
        assert rig.plan.num_tokens == 2
        planned.append(set(rig.counts()))
    assert planned[1] | planned[2] | planned[3] == {0, 1, 2, 3, 4}
    assert rig.scheduler.plan(max_tokens=0) == Plan()


def test_without_chunked_prefill_a_prompt_is_computed_whole():
    rig = Rig(max_num_batched_tokens=10, chunked_prefill=False)
    rig.add([1] * 6)
    rig.add([2] * 6)
    rig.step(max_tokens=2)
    assert rig.counts() == {0: 6}
    rig.step()
    assert rig.counts() == {0: 1, 1: 6}
    with pytest.raises(BadRequest, match=r"The prompt has 11 tokens; without chunked prefill at most .* \(10\)"):
        rig.add([3] * 11)


def test_without_chunked_prefill_what_has_outgrown_the_budget_is_recomputed_in_parts():
    rig = Rig(num_pages=4, page_size=4, max_num_batched_tokens=6, chunked_prefill=False, caching=False)
    rig.add([1] * 3, {"max_tokens": 12})
    rig.add([2] * 5, {"max_tokens": 9})
    rig.run()
    assert rig.stats().num_preemptions_recompute_total > 0
    assert (len(rig.output("r0")), len(rig.output("r1"))) == (12, 9)


def test_no_more_seqs_run_than_may():
    rig = Rig(max_num_seqs=2)
    for i in range(4):
        rig.add([i] * 3, {"max_tokens": 2})
    rig.step()
    assert (rig.stats().num_running, rig.stats().num_waiting) == (2, 2)
    rig.run()
    assert rig.order() == ["r0", "r1", "r2", "r3"]


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
        {"adapters": (AdapterUse(AdapterRef(name="a")),)},
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


def test_the_latest_arrival_gives_up_its_pages_and_is_recomputed_with_what_it_generated():
    rig = Rig(num_pages=6, page_size=2, caching=False)
    rig.add([1, 2, 3, 4], {"max_tokens": 8})
    rig.add([5, 6, 7, 8], {"max_tokens": 4})
    rig.run()
    stats = rig.stats()
    assert (stats.num_preemptions_recompute_total, stats.num_preemptions_swap_total) == (1, 0)
    assert sorted(stats.ended_preemptions) == [0] * (len(stats.ended_preemptions) - 1) + [1]
    assert rig.stats().ended_preemptions == ()
    first, again = [start for plan in rig.plans for start in plan.started if start.seq_id == 1]
    assert again.output_ids == tuple(rig.output("r1")[: len(again.output_ids)]) != ()
    assert again.seed == first.seed
    assert rig.order() == ["r0", "r1"]


def test_pages_go_to_the_host_while_there_is_room_and_come_back_before_anyone_new():
    rig = Rig(num_pages=6, page_size=2, host_pages=6, caching=False)
    rig.add([1, 2, 3, 4], {"max_tokens": 8})
    rig.add([5, 6, 7, 8], {"max_tokens": 4})
    while not rig.stats().num_swapped:
        rig.step()
    assert (rig.plan.ended, len(rig.plan.swaps_out)) == ((1,), 3)
    rig.add([9])
    rig.run()
    assert rig.order() == ["r0", "r1", "r2"]
    assert rig.stats().num_preemptions_swap_total == 1
    assert sum(len(plan.swaps_in) for plan in rig.plans) == 3
    computed = [chunk.start for plan in rig.plans for chunk in plan.chunks if chunk.seq_id == 1]
    assert computed == sorted(set(computed)), "nothing was computed twice"


@pytest.mark.parametrize(("preemption", "host_pages"), [("recompute", 9), ("swap", 1), ("auto", 2)])
def test_pages_are_recomputed_when_asked_for_or_when_the_host_has_no_room(preemption, host_pages):
    rig = Rig(num_pages=6, page_size=2, host_pages=host_pages, preemption=preemption)
    rig.add([1, 2, 3, 4], {"max_tokens": 8})
    rig.add([5, 6, 7, 8], {"max_tokens": 4})
    rig.run()
    assert (rig.stats().num_preemptions_recompute_total, rig.stats().num_preemptions_swap_total) == (1, 0)


def test_preemptions_are_reported_but_not_every_one(caplog):
    rig = Rig(num_pages=6, page_size=2, caching=False)
    with caplog.at_level(logging.WARNING):
        for _ in range(30):
            rig.add([1, 2, 3, 4], {"max_tokens": 8})
            rig.add([5, 6, 7, 8], {"max_tokens": 4})
        rig.run()
    preemptions = rig.stats().num_preemptions_recompute_total
    assert preemptions > 20
    assert len(caplog.records) == -(-preemptions // 50)
    assert "The KV cache is full: request r2 gives up its pages and will be recomputed (1 such" in caplog.text


def test_priority_decides_who_is_admitted_and_who_gives_up_pages():
    rig = Rig(num_pages=6, page_size=2, policy=ByPriority(Context()), max_num_seqs=2, caching=False)
    rig.add([1, 2, 3, 4], {"max_tokens": 4}, priority=5)
    rig.add([5, 6, 7, 8], {"max_tokens": 8}, priority=1)
    rig.add([1], priority=3)
    rig.add([2], priority=-1)
    rig.step()
    assert set(rig.counts()) == {3, 1}
    rig.run()
    assert rig.order() == ["r3", "r1", "r2", "r0"]


def test_a_newcomer_is_not_begun_while_there_are_no_pages_for_all_of_its_prompt():
    rig = Rig(num_pages=6, page_size=4, max_num_batched_tokens=5, caching=False)
    rig.add([1] * 4, {"max_tokens": 9})
    rig.add([2] * 21, {"max_tokens": 1})
    rig.step()
    rig.step()
    assert (set(rig.counts()), rig.pool.available) == ({0}, 4)
    rig.run()
    assert rig.order() == ["r0", "r1"]
    assert rig.stats().num_preemptions_recompute_total == 0


def test_a_few_pages_are_kept_for_the_growth_of_those_who_run():
    rig = Rig(num_pages=100, page_size=1, caching=False)
    rig.add([1] * 50, {"max_tokens": 2})
    rig.add([2] * 50, {"max_tokens": 1})
    rig.step()
    assert rig.counts() == {0: 50}, "its prompt would take the last page"
    rig = Rig(num_pages=100, page_size=1, caching=False)
    rig.add([1] * 50, {"max_tokens": 2})
    rig.add([2] * 49, {"max_tokens": 1, "n": 2})
    rig.step()
    assert rig.counts() == {0: 50}, "a fork grows, too"


def test_forks_that_begin_at_once_wait_a_step_when_there_are_no_pages_for_all():
    rig = Rig(num_pages=2, page_size=4, caching=False)
    rig.add([1], {"n": 3, "max_tokens": 3})
    rig.step()
    assert rig.counts() == {0: 1, 1: 1}
    rig.run()
    assert [len(rig.output("r0", index)) for index in range(3)] == [3, 3, 3]


def test_who_is_not_ready_lets_others_pass():
    unready = {"r0"}
    rig = Rig(ready=lambda request: request.id not in unready)
    rig.add([1])
    rig.add([2])
    rig.step()
    assert set(rig.counts()) == {1}
    unready.clear()
    rig.step()
    assert set(rig.counts()) == {0, 1}
