"""Clients in the background: they begin when no other request waits, give way, and have what the others leave."""

from scheduler_rig import Rig

from quire.types import background

BATCH = background("a")


def clients_of(rig):
    seqs = rig.scheduler._state.seqs
    return [seqs[seq_id].client for seq_id in rig.counts() if seq_id in seqs]


def test_a_request_in_the_background_waits_until_no_other_request_does():
    rig = Rig(max_num_seqs=2)
    rig.add([1], client=BATCH, request_id="behind")
    for i in range(3):
        rig.add([2], client="a", request_id=f"r{i}")
    rig.run()
    assert rig.order()[-1] == "behind"


def test_it_gives_its_place_to_a_request_that_comes_later():
    rig = Rig(max_num_seqs=2)
    for i in range(2):
        rig.add([i], {"max_tokens": 20}, client=BATCH, request_id=f"behind{i}")
    rig.step()
    rig.add([3], {"max_tokens": 1}, client="a", request_id="late")
    rig.step()
    assert rig.order() == ["late"], "it ran at once"
    rig.run()
    assert all(rig.output(f"behind{i}") for i in range(2))


def test_its_pages_are_taken_first_although_it_came_first():
    rig = Rig(num_pages=8, page_size=4, max_model_len=32)
    behind = rig.add(range(8), {"max_tokens": 20}, client=BATCH)
    rig.step()
    other = rig.add(range(30, 42), {"max_tokens": 18}, client="a")
    for _ in range(18):
        rig.step()
    assert rig.last(other).finish_reason == "length", "it was never preempted"
    rig.run()
    assert len(rig.output(behind)) == 20


def test_beside_other_requests_it_has_a_few_tokens_of_a_step_and_else_all():
    rig = Rig(max_num_batched_tokens=64)
    rig.add([1], {"max_tokens": 6}, client="a", request_id="other")
    rig.add(range(40), {"max_tokens": 1}, client=BATCH, request_id="behind")
    for allowed in (0, 3, 0, 5):
        rig.step(max_background=allowed)
        assert sorted(rig.counts().values()) == [1, allowed][: 1 + (allowed > 0)]
    rig.step()
    rig.step()
    assert rig.order() == ["other"]
    rig.step()
    assert rig.order() == ["other", "behind"]
    assert list(rig.counts().values()) == [32]


def test_few_tokens_go_round_among_its_requests():
    rig = Rig()
    rig.add([1], {"max_tokens": 40}, client="a")
    behind = [rig.add([i], {"max_tokens": 8}, client=BATCH) for i in range(4)]
    for _ in range(20):
        rig.step(max_background=2)
    assert all(len(rig.output(one)) >= 7 for one in behind)


def test_other_clients_share_as_if_it_were_not_there():
    rig = Rig(max_num_seqs=4)
    for client in (BATCH, "a", "a", "a", "a", "a"):
        rig.add([1], {"max_tokens": 10}, client=client)
    rig.step()
    assert clients_of(rig) == ["a"] * 4


def test_a_client_that_comes_gets_no_credit_for_what_the_background_did_not_get():
    rig = Rig()
    rig.add([1], {"max_tokens": 30}, client="a")
    rig.add([1], {"max_tokens": 30}, client=BATCH)
    rig.add([1], {"max_tokens": 30}, client="b")
    for _ in range(10):
        rig.step(max_background=1)
    rig.add([1], client="late")
    tokens = rig.scheduler._state.clients.tokens
    assert tokens["late"] == min(tokens["a"], tokens["b"]) > 0
    assert BATCH not in tokens
