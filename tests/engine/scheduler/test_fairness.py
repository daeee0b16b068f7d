"""Clients share the places among the running seqs, the tokens of a step, the pages and the queue."""

import pytest
from scheduler_rig import Rig

from quire.engine.fairness.client_tokens import ClientTokens
from quire.engine.fairness.shares import max_min_shares, over_share
from quire.engine.scheduler.seq import QueueKey
from quire.errors import Overloaded
from quire.params.sampling import SamplingParams
from quire.records import Draft
from quire.types import AcceptedDrafts, Prompt, Request, Sample, StepResult

LONG = {"max_tokens": 100}


def running(rig: Rig) -> list[str]:
    return sorted(seq.client for seq in rig.scheduler._state.running.values())


def first_token(rig: Rig, request_id: str) -> int:
    """Steps until a request has its first token."""
    for step in range(1, 1000):
        if any(delta.request_id == request_id for delta in rig.step()):
            return step
    raise AssertionError(f"{request_id} has no token after 1000 steps")


@pytest.mark.parametrize("host_pages", [0, 64])
def test_many_answers_to_one_client_do_not_keep_another_waiting(host_pages: int) -> None:
    rig = Rig(max_num_seqs=8, num_pages=200, host_pages=host_pages)
    rig.add(range(10), {"n": 8, "max_tokens": 100}, client="many")
    for _ in range(3):
        rig.step()
    assert running(rig) == ["many"] * 8
    assert first_token(rig, rig.add(range(20, 30), {"max_tokens": 3}, client="one")) == 1
    assert running(rig) == ["many"] * 7 + ["one"]
    rig.run()
    assert {len(rig.output("r0", index)) for index in range(8)} == {100}


def test_a_client_takes_no_more_places_from_another_than_its_share() -> None:
    rig = Rig(max_num_seqs=8, num_pages=400)
    rig.add(range(10), {"n": 8, "max_tokens": 100}, client="a")
    rig.step()
    for _ in range(20):
        rig.add(range(20, 30), LONG, client="b")
    for _ in range(12):
        rig.step()
    assert running(rig) == ["a"] * 4 + ["b"] * 4


def test_one_client_alone_may_have_all_places() -> None:
    rig = Rig(max_num_seqs=8)
    rig.add(range(10), {"n": 8, "max_tokens": 8}, client="a")
    rig.step()
    assert running(rig) == ["a"] * 8


def test_a_request_for_many_answers_does_not_wait_for_all_places_nor_keep_others_out() -> None:
    rig = Rig(max_num_seqs=8, num_pages=400)
    rig.add(range(10), LONG, client="one")
    rig.step()
    rig.add(range(30, 40), {"n": 8, "max_tokens": 100}, client="many")
    assert first_token(rig, rig.add(range(20, 30), LONG, client="late")) <= 2
    assert "many" in running(rig)


def test_a_queue_of_long_prompts_leaves_another_client_its_share_of_each_step() -> None:
    rig = Rig(max_num_batched_tokens=16, num_pages=400, max_model_len=400)
    for start in range(0, 3000, 300):
        rig.add(range(start, start + 300), LONG, client="long")
    rig.step()
    assert first_token(rig, rig.add(range(8), {"max_tokens": 2}, client="short")) == 1
    assert rig.plan.num_tokens == 16


def test_a_client_that_was_given_less_goes_first() -> None:
    rig = Rig(max_num_seqs=1, num_pages=100, max_num_batched_tokens=16)
    busy = [rig.add(range(i, i + 30), {"max_tokens": 4}, client="busy") for i in range(4)]
    rig.step()
    late = rig.add(range(200, 208), {"max_tokens": 1}, client="late")
    rig.run()
    assert rig.order() == [busy[0], late, *busy[1:]]


def test_a_more_urgent_priority_goes_before_other_clients() -> None:
    rig = Rig(max_num_seqs=1, num_pages=100, max_num_batched_tokens=16)
    busy = [rig.add(range(i, i + 30), {"max_tokens": 4}, client="busy", priority=-1) for i in range(3)]
    rig.step()
    late = rig.add(range(200, 208), {"max_tokens": 1}, client="late")
    rig.run()
    assert rig.order() == [*busy, late]


def test_pages_are_taken_from_the_client_that_has_more_than_its_share() -> None:
    rig = Rig(num_pages=24, page_size=4, max_num_seqs=8)
    for start in (0, 40):
        rig.add(range(start, start + 40), LONG | {"max_tokens": 4}, client="a")
    rig.step()
    assert first_token(rig, rig.add(range(100, 124), {"max_tokens": 2}, client="b")) == 1
    rig.run()
    assert rig.stats().num_preemptions_recompute_total == 1


def test_the_queue_of_one_client_does_not_keep_another_out() -> None:
    rig = Rig(max_num_queued_reqs=4)
    for _ in range(4):
        rig.add(range(4), client="flood")
    with pytest.raises(Overloaded):
        rig.add(range(4), client="flood")
    rig.add(range(4), client="other")
    rig.add(range(4), client="other")
    with pytest.raises(Overloaded):
        rig.add(range(4), client="other")


def test_shares_are_even_and_what_one_leaves_goes_to_the_others() -> None:
    assert max_min_shares(100, {"a": 10, "b": 500, "c": 60}) == {"a": 10, "b": 45, "c": 45}
    assert max_min_shares(100, {"a": 10, "b": 20}) == {"a": 10, "b": 20}
    assert max_min_shares(7, {}) == {}


def test_a_client_crowds_only_while_another_waits_with_less() -> None:
    assert over_share({"a": 0, "b": 0}, ["a"] * 5, 8) == {"a"}
    assert over_share({"a": 0}, ["a"] * 8, 8) == set()
    assert over_share({"a": 0, "b": 0}, ["a"] * 4 + ["b"] * 4, 8) == set()
    assert over_share({"a": -1, "b": 0}, ["a"] * 5, 8) == set()


def test_idleness_earns_no_credit() -> None:
    tokens = ClientTokens(tolerance=10, max_num_seqs=8)
    a, b, c = (
        Request(id=name, client=name, prompt=Prompt(token_ids=(1,)), params=SamplingParams())
        for name in ("a", "b", "c")
    )
    tokens.add_request(a)
    tokens.add_request(b)
    tokens.add_tokens(QueueKey("a", ()), 1000)
    tokens.add_tokens(QueueKey("b", ()), 995)
    tokens.add_request(c)
    tokens.add_tokens(QueueKey("c", ()), 20)
    assert tokens.ahead({"a": 0, "b": 0, "c": 0}) == {"c"}
    tokens.remove_request(c)
    assert tokens.tokens.keys() == {"a", "b"}


def test_the_first_step_of_a_request_is_a_short_one() -> None:
    rig = Rig(max_num_seqs=64, num_pages=800)
    rig.add(range(10), {"n": 64, "max_tokens": 100}, client="many")
    for _ in range(3):
        rig.step()
    rig.add(range(20, 32), LONG, client="one")
    rig.step()
    assert rig.plan.num_tokens == 24
    rig.step()
    assert rig.plan.num_tokens == 64


def test_drafts_count_as_tokens_of_their_client_and_take_none_from_others():
    rig = Rig(max_num_seqs=8, num_pages=200, max_num_batched_tokens=16)
    rig.add(range(10), LONG, client="a")
    rig.step()
    rig.add(range(20, 30), LONG, client="b")
    rig.step()
    tokens = rig.scheduler._state.clients.tokens
    before = dict(tokens)
    plan = rig.scheduler.plan(None, 0, {0: Draft([5] * 9)})
    assert {chunk.seq_id: chunk.num_drafts for chunk in plan.chunks} == {0: 9, 1: 0}
    assert {client: tokens[client] - before[client] for client in tokens} == {"a": 10, "b": 1}
    rig.scheduler.commit(plan, StepResult({0: Sample(7), 1: Sample(7)}, accepted={0: AcceptedDrafts((), 0)}))
    rig.add(range(30, 100), LONG, client="b")
    plan = rig.scheduler.plan(None, 0, {0: Draft([5] * 9)})
    assert {chunk.seq_id: chunk.num_drafts for chunk in plan.chunks} == {0: 0, 1: 0, 2: 0}  # a prompt has the rest
    assert plan.num_tokens == 16


def test_drafts_of_a_client_alone_are_not_counted():
    rig = Rig()
    rig.add(range(10), LONG, client="a")
    rig.step()
    assert rig.scheduler.plan(None, 0, {0: Draft([5] * 9)}).chunks[0].num_drafts == 9
    assert rig.scheduler._state.clients.tokens == {"a": 0}
