"""Where the router places requests: by what each replica holds, while its load is bounded."""

from random import Random

import pytest

from quire.params.sampling import SamplingParams
from quire.records import Context
from quire.routing.blocks import BLOCK_TOKENS, block_keys
from quire.routing.loads import SEQ_TOKENS
from quire.routing.router import RequestRouter
from quire.types import AdapterRef, Media, Prompt, Request, WeightedAdapter
from quire_plugins.routing import POLICIES

SIZE = 6 * BLOCK_TOKENS


def router(count=2, policy="prefix", cache_tokens=100 * BLOCK_TOKENS, slots=8):
    made = RequestRouter(count, POLICIES[policy](Context()))
    made.add_model("m", cache_tokens, slots)
    return made


def request(token_ids, *adapters, salt=None, n=1, media=()):
    return Request(
        id="r",
        prompt=Prompt(token_ids=tuple(token_ids), media=media),
        params=SamplingParams(n=n),
        adapters=tuple(WeightedAdapter(AdapterRef(name=name)) for name in adapters),
        cache_salt=salt,
    )


def picture(digest):
    return Media(modality="image", start=3, length=80, digest=digest, tensors={})


def prompt(prefix, own=0, size=SIZE):
    return [prefix] * size + [1000 + own] * 10


def place(routes, *args, **kinds):
    return routes.place("m", request(*args, **kinds), (1 << routes.num_replicas) - 1)


def finished(routes, *args, **kinds):
    placed = place(routes, *args, **kinds)
    routes.began(placed)
    routes.ended(placed)
    return placed.replica


def test_requests_with_one_prefix_go_to_one_replica_and_prefixes_are_spread():
    routes = router()
    homes = [place(routes, prompt(prefix)).replica for prefix in range(8)]
    assert sorted(homes) == [0] * 4 + [1] * 4
    for own in range(4):
        for prefix in range(8):
            placed = place(routes, prompt(prefix, own))
            assert (placed.replica, placed.num_cached) == (homes[prefix], SIZE)


def test_a_prefix_that_one_replica_cannot_serve_alone_comes_to_others():
    routes = router(4)
    replicas = [place(routes, prompt(7, own)).replica for own in range(200)]
    counts = [replicas.count(replica) for replica in range(4)]
    assert min(counts) > 35  # 50 each would be even
    quiet = router(4)
    assert {finished(quiet, prompt(7, own)) for own in range(200)} == {replicas[0]}


@pytest.mark.parametrize("seed", range(5))
def test_adapters_are_on_as_few_replicas_as_their_load_needs(seed):
    """Bursts of 32 requests for eight adapters, four for each; a ninth then gets as many as all others together."""
    routes, draw, homes = router(), Random(seed), {}

    def burst(counts):
        names = [name for name, count in counts.items() for _ in range(count)]
        draw.shuffle(names)
        placed = [place(routes, [draw.randint(1, 999) for _ in range(draw.randint(32, 256))], name) for name in names]
        for name, placement in zip(names, placed, strict=True):
            homes.setdefault(name, set()).add(placement.replica)
            routes.ended(placement)
        return [sum(placement.replica == replica for placement in placed) for replica in range(2)]

    for _ in range(5):
        assert min(burst({f"a{i}": 4 for i in range(8)})) >= 8
    assert sum(len(replicas) for replicas in homes.values()) <= 9
    for _ in range(5):
        assert min(burst({"hot": 64, **{f"a{i}": 2 for i in range(8)}})) >= 25
    assert len(homes["hot"]) == 2


def test_adapters_stay_where_they_have_a_slot_and_a_busy_one_gets_more():
    routes = router()
    for i in range(64):
        place(routes, [i], f"a{i % 8}")
    homes = {}
    for i in range(64):
        homes.setdefault(f"a{i % 8}", set()).add(finished(routes, [i], f"a{i % 8}"))
    assert all(len(replicas) == 1 for replicas in homes.values())
    busy = router()
    assert {place(busy, [i], "hot").replica for i in range(64)} == {0, 1}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"salt": "x"}, {"salt": "y"}),
        ({"salt": None}, {"salt": ""}),
        ({"media": (picture("d1"),)}, {"media": (picture("d2"),)}),
    ],
)
def test_what_the_engine_does_not_share_is_not_a_common_prefix(first, second):
    tokens = prompt(1)
    keys = [block_keys("m", request(tokens, **kind), []) for kind in (first, second)]
    assert not set(keys[0]) & set(keys[1])
    assert keys[0] == block_keys("m", request(tokens, **first), [])
    assert len(keys[0]) == len(tokens) // BLOCK_TOKENS


@pytest.mark.parametrize("token", [2**70, 0.5, "x", None])
def test_what_is_no_token_id_is_placed_and_left_to_others_to_refuse(token):
    assert place(router(), [token] * 100).num_cached == 0


def test_adapters_weights_models_and_loads_have_prefixes_of_their_own():
    tokens = prompt(1)
    same = block_keys("m", request(tokens, "a"), [1])
    assert same == block_keys("m", request([*tokens, 5], "a"), [1])
    others = [block_keys("n", request(tokens, "a"), [1]), block_keys("m", request(tokens, "a"), [2])]
    others += [block_keys("m", request(tokens, "b"), [1]), block_keys("m", request(tokens), [])]
    assert all(not set(same) & set(other) for other in others)


def test_after_a_reload_the_prefixes_of_the_old_revision_are_not_expected():
    routes = router()
    routes.adapter_loaded("m", "a", 1)
    assert place(routes, prompt(1), "a").replica == 1
    assert place(routes, prompt(1), "a").num_cached == SIZE
    routes.adapter_loaded("m", "a", 1)
    assert place(routes, prompt(1), "a").num_cached == 0


def test_a_replica_that_restarted_holds_nothing():
    routes = router()
    home = finished(routes, prompt(1), "a")
    assert place(routes, prompt(1), "a").num_cached == SIZE
    routes.restarted(home)
    assert place(routes, prompt(1), "a").num_cached == 0


def test_a_replica_keeps_as_many_prefixes_as_fit_and_drops_their_ends_first():
    routes = router(1, cache_tokens=8 * BLOCK_TOKENS)
    finished(routes, prompt(1))
    finished(routes, prompt(2, size=4 * BLOCK_TOKENS))
    assert place(routes, prompt(1)).num_cached == 4 * BLOCK_TOKENS


def test_a_replica_has_as_many_adapters_as_slots():
    routes = router(2, slots=1)
    homes = [place(routes, [1], name).replica for name in "ab"]
    assert sorted(homes) == [0, 1]
    assert [finished(routes, [1], name) for name in "abab"] == homes * 2
    crowded = router(1, slots=1)
    for name in "ab":
        finished(crowded, [1], name)
    held = crowded._models["m"].adapters
    assert [held[name] for name in "ab"] == [0, 1]


def test_without_a_prefix_cache_nothing_is_expected_in_it():
    routes = router(cache_tokens=0)
    assert [place(routes, prompt(1)).num_cached for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("count", [3, 100])
def test_only_available_replicas_are_chosen_and_loads_return_to_zero(policy, count):
    routes = router(count, policy)
    available = sum(1 << replica for replica in range(0, count, 2))
    placed = [routes.place("m", request(prompt(i % 5, i), f"a{i % 3}", n=2), available) for i in range(100)]
    assert all(available >> one.replica & 1 for one in placed)
    assert sum(map(routes.load, range(count))) >= 100 * 2 * SEQ_TOKENS
    for one in placed:
        routes.began(one)
        routes.ended(one)
        routes.ended(one)
    assert not any(map(routes.load, range(count)))


def test_round_robin_takes_turns_and_least_loaded_looks_at_loads():
    routes = router(3, "round-robin")
    assert [place(routes, [1]).replica for _ in range(6)] == [0, 1, 2] * 2
    routes = router(3, "least-loaded")
    assert [place(routes, [1] * size).replica for size in (500, 100, 10, 10)] == [0, 1, 2, 2]


def test_a_model_that_was_unloaded_is_forgotten():
    routes = router()
    routes.add_model("n", 1000, 1)
    routes.remove_model("n")
    assert routes.models == ["m"]
    routes.adapter_loaded("n", "a", 0)
    routes.adapter_unloaded("n", "a")
    with pytest.raises(KeyError):
        routes.place("n", request([1]), 1)
