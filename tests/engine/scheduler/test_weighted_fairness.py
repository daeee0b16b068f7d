"""Clients get service by their weights: a simulation of the real scheduler with clients that always have requests."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import example, given, settings, strategies as st
from scheduler_rig import Rig

from quire.engine.fairness.client_places import ClientPlaces
from quire.engine.fairness.shares import max_min_places, max_min_shares, over_share, weighted_part
from quire.params.sampling import SamplingParams
from quire.types import AdapterRef, Prompt, Request, WeightedAdapter

STEP_TOKENS = 32
FLOOD = "flood"


class Load:
    """Clients that each keep a number of requests unfinished. served: tokens computed for each, prompts included.

    weights, streams: by client. waits: for each request that has begun, the steps until its first token, by client.
    """

    def __init__(self, weights, streams, lengths, max_num_seqs=16, step_tokens=STEP_TOKENS) -> None:
        self.rig = Rig(max_num_seqs=max_num_seqs, max_num_batched_tokens=step_tokens, num_pages=2000, caching=False)
        self.weights, self.streams, self._lengths = weights, streams, lengths
        self.served = dict.fromkeys(weights, 0)
        self.waits = {client: [] for client in weights}
        self._open: dict[str, tuple[str, int]] = {}  # request id → client and step of arrival
        self._number = 0

    def _fill(self, step) -> None:
        unfinished = [client for client, _ in self._open.values()]
        for client, count in self.streams.items():
            for _ in range(count - unfinished.count(client)):
                prompt, output = self._lengths[self._number % len(self._lengths)]
                self._number += 1
                name = f"{client}-{self._number}"
                params = {"max_tokens": output}
                self.rig.add(range(1, prompt + 1), params, name, client=client, weight=self.weights[client])
                self._open[name] = (client, step)

    def run(self, steps, on_step=lambda: None) -> Load:
        begun = set()
        for step in range(steps):
            self._fill(step)
            clients = {seq.id: seq.client for seq in self.rig.scheduler._state.seqs.values()}
            deltas = self.rig.step()
            for chunk in self.rig.plan.chunks:
                self.served[clients[chunk.seq_id]] += len(chunk.token_ids)
            for name in (delta.request_id for delta in deltas):
                if name not in begun:
                    begun.add(name)
                    client, arrived = self._open[name]
                    self.waits[client].append(step - arrived)
            for delta in deltas:
                if delta.finish_reason:
                    del self._open[delta.request_id]
            on_step()
        return self

    def normalized(self) -> list[float]:
        """Service of each client divided by its weight."""
        return [self.served[client] / weight for client, weight in self.weights.items()]


def jain(values) -> float:
    """Jain's index: 1 if all values are equal, 1/n if one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


@settings(max_examples=15, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=2, max_size=4),
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=5),
)
def test_service_of_clients_with_requests_differs_by_a_bound(weights, lengths) -> None:
    """The bound of virtual token counters: over any time in which clients have requests, service by weight differs by a
    constant, whatever the length of the requests and of the time."""
    clients = {f"c{i}": weight for i, weight in enumerate(weights)}
    load = Load(clients, dict.fromkeys(clients, 20), lengths)
    counters = load.rig.scheduler._state.clients
    longest = max(prompt + output for prompt, output in lengths)
    # Running seqs are not preempted for a counter: what one may be ahead is the tolerance, and what its running seqs
    # still compute.
    bound = 2 * (STEP_TOKENS + longest * weighted_part(16, max(weights), sum(weights))) / min(weights)

    def check() -> None:
        assert max(counters.tokens.values()) - min(counters.tokens.values()) <= bound

    load.run(150, check)
    spread = max(load.normalized()) - min(load.normalized())
    assert spread <= bound


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0, 1.0), (1.0, 2.0, 2.0, 3.0)])
def test_a_flood_of_streams_does_not_take_service_from_steady_clients(weights) -> None:
    clients = dict(zip((FLOOD, "a", "b", "c"), weights, strict=True))
    lengths = [(20, 12), (8, 20), (30, 6), (12, 12)]
    steady = {"a": 10, "b": 10, "c": 10}
    disturbed = Load(clients, {FLOOD: 64, **steady}, lengths).run(600)
    assert jain(disturbed.normalized()) >= 0.95
    alone = Load({c: clients[c] for c in steady}, steady, lengths).run(600)
    for client in steady:
        # with a quarter of the engine for the flood a request waits longer, but by a bounded factor
        assert p99(disturbed.waits[client]) <= 3 * p99(alone.waits[client]) + 5


def test_what_some_clients_leave_is_used_by_the_others() -> None:
    flood = {FLOOD: 64}
    lengths = [(20, 12), (8, 20)]
    alone = Load({FLOOD: 1.0}, flood, lengths).run(200)
    beside = Load({FLOOD: 1.0, "idle": 100.0}, {**flood, "idle": 1}, lengths).run(200)
    assert sum(beside.served.values()) >= 0.98 * sum(alone.served.values())


def test_steps_of_several_clients_compute_as_many_tokens_as_those_of_one() -> None:
    lengths = [(20, 12), (8, 20)]
    weights = {FLOOD: 1.0, "a": 2.0, "b": 2.0, "c": 3.0}
    several = Load(weights, {FLOOD: 64, "a": 12, "b": 12, "c": 12}, lengths, step_tokens=256).run(150)
    one = Load({FLOOD: 1.0}, {FLOOD: 100}, lengths, step_tokens=256).run(150)
    assert sum(several.served.values()) >= 0.98 * sum(one.served.values())


@example(wanted=[(1, 2.0), (4, 0.5), (13, 2.0), (1, 0.5), (1, 0.5), (23, 0.5)], max_seqs=42, num_last=3)
@given(
    wanted=st.lists(st.tuples(st.integers(1, 40), st.sampled_from([0.5, 1.0, 2.0, 3.0])), min_size=1, max_size=6),
    max_seqs=st.integers(42, 100),
    num_last=st.integers(0, 3),
)
def test_places_are_divided_max_min_fairly(wanted, max_seqs, num_last) -> None:
    """No client has less than its part unless it wants less, and what it leaves goes to the others by weight."""
    weights = {i: weight for i, (_, weight) in enumerate(wanted)}
    counts = {i: count for i, (count, _) in enumerate(wanted)}
    last = set(range(num_last))
    shares = max_min_places(max_seqs, counts, weights, last)
    assert sum(shares.values()) <= max_seqs
    part = {key: min(counts[key], weighted_part(max_seqs, weights[key], sum(weights.values()))) for key in counts}
    assert all(part[key] <= shares[key] <= counts[key] for key in counts)
    lacking = [key for key in shares if shares[key] < counts[key]]
    assert not lacking or sum(counts.values()) > max_seqs
    first = [key for key in lacking if key not in last]
    assert not first or all(shares[key] == part[key] for key in last.intersection(shares))
    for group in (first, [key for key in lacking if key in last]):
        for a, b in product(group, group):  # one place more for any of them would be more than any other has
            assert shares[a] / weights[a] <= (shares[b] + 1) / weights[b]


def request_of(client: str) -> Request:
    return Request(id="r", prompt=Prompt(token_ids=(1,)), params=SamplingParams(), client=client)


@given(changes=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=80), max_seqs=st.integers(26, 60))
def test_places_after_requests_came_and_went_are_those_of_the_requests_that_are_left(changes, max_seqs) -> None:
    """The division is kept while only a client changes that wants more than it gets."""
    weights = {"a": 0.5, "b": 1.0, "c": 2.0, "d": 3.0}
    places = ClientPlaces(max_seqs, weights)
    left: Counter[str] = Counter(dict.fromkeys(weights, max_seqs // 3))
    for client in left.elements():
        places.add_request(request_of(client))
    for number, comes in changes:
        client = "abcd"[number]
        for _ in range(max_seqs // 6):
            if comes:
                places.add_request(request_of(client))
            elif left[client]:
                places.remove_request(request_of(client))
            left[client] += 1 if comes else -1 if left[client] else 0
            assert places.shares == max_min_places(max_seqs, +left, weights)


def test_a_burst_gets_places_that_other_clients_leave_before_a_flood_does() -> None:
    """Three of the four clients together want less than three quarters: the burst of one is no reason to wait."""
    rig = Rig(max_num_seqs=16, num_pages=800)
    for _ in range(40):
        rig.add(range(10), {"max_tokens": 100}, client=FLOOD)
    for client, count in (("a", 1), ("b", 2)):
        for _ in range(count):
            rig.add(range(10), {"max_tokens": 100}, client=client)
    rig.step()
    for _ in range(6):
        rig.add(range(10), {"max_tokens": 100}, client="burst")
    for _ in range(8):
        rig.step()
    running = sorted(seq.client for seq in rig.scheduler._state.running.values())
    assert running == ["a", "b", "b", *["burst"] * 6, *[FLOOD] * 7]


def test_requests_without_a_place_take_no_tokens_from_a_prompt() -> None:
    rig = Rig(max_num_seqs=4, num_pages=800, max_num_batched_tokens=60)
    for i in range(20):
        rig.add(range(50 * i, 50 * i + 50), {"max_tokens": 100}, client=FLOOD)
    for _ in range(6):
        rig.step()
    prompt = rig.add(range(2000, 2050), {"max_tokens": 2}, client="one")
    assert prompt in [delta.request_id for delta in rig.step()]
    assert rig.plan.num_tokens == 53


def test_a_prompt_of_a_flood_waits_for_a_step_while_another_client_gets_its_first_token() -> None:
    rig = Rig(max_num_seqs=8, num_pages=800, max_num_batched_tokens=60)
    for i in range(20):
        rig.add(range(50 * i, 50 * i + 50), {"max_tokens": 100}, client=FLOOD)
    rig.add(range(2000, 2010), {"max_tokens": 100}, client="one")
    for _ in range(3):
        rig.step()
        assert rig.plan.num_tokens == 60
    late = rig.add(range(3000, 3040), {"max_tokens": 2}, client="two")
    assert late in [delta.request_id for delta in rig.step()]
    assert rig.plan.num_tokens < 60
    rig.step()
    assert rig.plan.num_tokens == 60


def test_places_tokens_and_pages_are_divided_by_weight() -> None:
    assert max_min_shares(90, {"a": 500, "b": 500}, {"a": 2.0}) == {"a": 60, "b": 30}
    assert max_min_shares(90, {"a": 10, "b": 500, "c": 500}, {"a": 7.0, "b": 3.0}) == {"a": 10, "b": 60, "c": 20}
    assert over_share({"a": 0, "b": 0}, ["a"] * 5, 8, {"a": 3.0}) == set()
    assert over_share({"a": 0, "b": 0}, ["a"] * 6, 8, {"a": 3.0}) == {"a"}
    rig = Rig(max_num_seqs=8, num_pages=400)
    for _ in range(10):
        rig.add(range(10), {"max_tokens": 50}, client="light")
    rig.step()
    for _ in range(10):
        rig.add(range(20, 30), {"max_tokens": 50}, client="heavy", weight=3.0)
    for _ in range(12):
        rig.step()
    running = sorted(seq.client for seq in rig.scheduler._state.running.values())
    assert running == ["heavy"] * 6 + ["light"] * 2


def test_adapters_of_a_client_share_what_it_has() -> None:
    """Requests with an adapter that has got fewer tokens go before those of the same client that have got more."""
    rig = Rig(max_num_seqs=2, num_pages=800, max_num_batched_tokens=16, max_model_len=400)
    one, two = ((WeightedAdapter(AdapterRef(name=name)),) for name in ("one", "two"))
    rig.add(range(10), {"max_tokens": 300}, client="other")
    first = [rig.add(range(50 * i, 50 * i + 40), {"max_tokens": 2}, client="a", adapters=one) for i in range(4)]
    for _ in range(4):
        rig.step()
    late = rig.add(range(300, 304), {"max_tokens": 1}, client="a", adapters=two)
    while len(rig.order()) < 5:
        rig.step()
    assert rig.order() == [*first[:2], late, *first[2:]]


def p99(values) -> int:
    return sorted(values)[int(len(values) * 0.99)]
