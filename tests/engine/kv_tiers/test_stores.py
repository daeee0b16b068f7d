"""Stores of KV pages: bounded, the least recently used first to go, and nothing that is damaged comes back."""

import multiprocessing
import os
import random
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings, strategies as st

from quire.engine.kv_tiers.blobs import OVERHEAD, StoredPage, encode
from quire.engine.kv_tiers.host_store import HostStore
from quire.engine.kv_tiers.rates import RETRY_EVERY, Rates
from quire.engine.kv_tiers.tier import MAX_FAULTS, Tier
from quire.engine.kv_tiers.tier_stack import TierStack
from quire.errors import ConfigError
from quire.hooks.registry import load
from quire.records import KvStoreContext
from quire_plugins.kv_disk import DiskStore
from quire_testing import check_kv_store

KEYS = [f"{i:032x}" for i in range(12)]
CAPACITY = 1000

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(KEYS), st.integers(1, 400)),
        st.tuples(st.just("put"), st.sampled_from(KEYS), st.just(CAPACITY + 1)),
        st.tuples(st.just("get"), st.sampled_from(KEYS), st.just(0)),
        st.tuples(st.just("remove"), st.sampled_from(KEYS), st.just(0)),
    ),
    max_size=60,
)


@given(ACTIONS)
def test_host_memory_is_bounded_and_drops_what_was_used_least_recently(actions):
    store, model = HostStore(CAPACITY), OrderedDict()
    for action, key, size in actions:
        if action == "put":
            store.put(key, bytes(size), None)
            model.pop(key, None)
            if size <= CAPACITY:
                model[key] = size
            while sum(model.values()) > CAPACITY:
                model.popitem(last=False)
        elif action == "get":
            found = store.get(key)
            assert (None if found is None else len(found)) == model.get(key)
            if key in model:
                model.move_to_end(key)
        else:
            store.remove(key)
            model.pop(key, None)
        assert store.use().num_bytes == sum(model.values()) <= CAPACITY
    assert store.contains(KEYS) == [key in model for key in KEYS]


def bytes_of(folder):
    return sum(file.stat().st_size for file in folder.glob("??/*"))


@settings(max_examples=40, deadline=None)
@given(ACTIONS)
def test_the_folder_is_bounded_and_keeps_what_was_used_last(tmp_path_factory, actions):
    folder = tmp_path_factory.mktemp("kv")
    store, used = DiskStore(folder, CAPACITY), []
    for action, key, size in actions:
        if action == "put":
            store.put(key, bytes(size), None)
        elif action == "get":
            found = store.get(key)
            assert found is None or set(found) <= {0}
        else:
            store.remove(key)
        used = [each for each in used if each != key]
        if store.contains([key])[0] and action != "remove":
            used.append(key)
        known = [each for each, has in zip(used, store.contains(used), strict=True) if has]
        assert known == used[len(used) - len(known) :]  # only the least recently used ones are missing
        used = known
        assert bytes_of(folder) == store.use().num_bytes <= CAPACITY
        assert len(used) == store.use().num_blobs


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.integers(1, 20), st.integers(0, 10)), max_size=40))
def test_a_page_is_there_until_its_time_is_over(pages):
    now, expiries = [1000.0], {}
    tier = Tier("host", HostStore(1 << 20), clock=lambda: now[0])
    for key, ttl, passes in pages:
        expiries[key] = None if ttl is None else now[0] + ttl
        tier.put(key, StoredPage(key.encode(), expiries[key]))
        now[0] += passes
        for each, expires in expiries.items():
            is_valid = expires is None or expires > now[0]
            assert [bytes(page.payload) for page in tier.get([each])] == ([each.encode()] if is_valid else [])


def test_a_page_keeps_its_expiry_when_it_moves_to_a_faster_tier():
    fast, slow = Tier("fast", HostStore(1 << 20)), Tier("slow", HostStore(1 << 20))
    stack, key = TierStack([fast, slow]), KEYS[0]
    slow.put(key, StoredPage(b"x", 4e9))
    places = stack.find([key, KEYS[1]])
    assert places == [1]
    stack.promote([key], places, stack.get([key], places, None))
    assert fast.get([key])[0].expires == 4e9
    assert stack.lacking([key, KEYS[1]]) == [[], [0, 1]]


def damage(rng, path):
    """Change a file in one of the ways in which files are damaged."""
    content = bytearray(path.read_bytes())
    way = rng.choice(
        ["flip", "flip", "flip", "truncate", "extend", "empty", "other", "noise", "delete", "folder", "link"]
    )
    if way == "flip":
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif way == "truncate":
        del content[rng.randrange(len(content)) :]
    elif way == "extend":
        content += bytes(rng.randrange(1, 50))
    elif way == "other":
        content = bytearray(encode("f" * 32, StoredPage(bytes(len(content) - OVERHEAD))))
    elif way == "noise":
        content = bytearray(rng.randbytes(len(content)))
    elif way == "empty":
        content.clear()
    path.unlink()
    if way == "folder":
        path.mkdir()
    elif way == "link":
        path.symlink_to("/dev/zero")
    elif way != "delete":
        path.write_bytes(content)


def test_a_thousand_damaged_files_are_all_missing(tmp_path):
    rng = random.Random(5)
    store = DiskStore(tmp_path / "kv", 1 << 24)
    tier = Tier("disk", store)
    for i in range(1000):
        key, payload = f"{i:032x}", rng.randbytes(64)
        tier.put(key, StoredPage(payload))
        assert [bytes(page.payload) for page in tier.get([key])] == [payload]
        damage(rng, tmp_path / "kv" / key[:2] / key)
        assert tier.get([key]) == []
        tier.put(key, StoredPage(payload))  # does not raise, whatever is in the way
    assert tier.stats().num_errors_total == 0


def test_a_damaged_count_is_made_anew(tmp_path):
    store = DiskStore(tmp_path, CAPACITY)
    store.put(KEYS[0], bytes(300), None)
    for content in (b"", b"x" * 20, bytes(40)):
        (tmp_path / "size").write_bytes(content)
        store.put(KEYS[1], bytes(300), None)
        assert store.use().num_bytes == bytes_of(tmp_path) == 600


def test_foreign_files_are_left_alone_and_unfinished_ones_are_deleted(tmp_path):
    (tmp_path / "ab").mkdir()
    for name in ("notes.txt", "ab/readme", ".7-1.tmp"):
        (tmp_path / name).write_bytes(bytes(5000))
    os.utime(tmp_path / ".7-1.tmp", (1, 1))
    store = DiskStore(tmp_path, CAPACITY)
    store.put(KEYS[0], bytes(900), None)
    assert store.contains(KEYS[:1]) == [True]
    assert (tmp_path / "notes.txt").exists()
    assert (tmp_path / "ab/readme").exists()
    assert not (tmp_path / ".7-1.tmp").exists()


def test_files_are_for_this_user_only(tmp_path):
    store = DiskStore(tmp_path / "kv", CAPACITY)
    store.put(KEYS[0], b"x", None)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "kv").rglob("*") if path.is_file()}
    assert modes == {0o600}
    assert (tmp_path / "kv").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("given", "message"),
    [({}, "needs a `folder`"), ({"folder": "/proc/x"}, "cannot be used"), ({"folder": "k", "max_bytes": 0}, "above 0")],
)
def test_settings_of_the_folder_that_cannot_be_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        DiskStore.from_context(KvStoreContext(settings=given))


def use_folder(folder, seed, results):
    """What one of several processes does with a folder."""
    rng, store, wrong = random.Random(seed), DiskStore(folder, 40_000), 0
    for _ in range(300):
        key = rng.choice(KEYS)
        if rng.random() < 0.5:
            store.put(key, key.encode() * rng.randrange(50, 200), None)
        else:
            found = store.get(key)
            wrong += found is not None and (not found or found != key.encode() * (len(found) // len(key)))
    results.put(wrong)


def test_two_processes_share_a_folder(tmp_path):
    fork = multiprocessing.get_context("fork")
    results = fork.Queue()
    processes = [fork.Process(target=use_folder, args=(tmp_path, seed, results)) for seed in range(2)]
    for process in processes:
        process.start()
    assert [results.get(timeout=60) for _ in processes] == [0, 0]
    for process in processes:
        process.join()
    assert DiskStore(tmp_path, 40_000).use().num_bytes == bytes_of(tmp_path) <= 40_000


class Hangs(HostStore):
    """A store whose calls wait for a signal, or raise."""

    def __init__(self):
        super().__init__(1 << 20)
        self.may_go_on, self.num_calls = threading.Event(), 0

    def get(self, key):
        self.num_calls += 1
        self.may_go_on.wait()
        return None


def test_a_store_that_hangs_is_given_up_and_then_left_alone():
    store = Hangs()
    tier = Tier("slow", store, timeout_s=0.05)
    try:
        for _ in range(MAX_FAULTS + 3):
            assert tier.get(KEYS[:1]) == []
        assert store.num_calls == MAX_FAULTS == tier.stats().num_errors_total
        assert tier.contains(KEYS[:1]) == [False]
    finally:
        store.may_go_on.set()
        tier.close()


def test_a_deadline_ends_a_search_without_blame():
    store = Hangs()
    tier = Tier("slow", store, timeout_s=60)
    try:
        assert tier.get(KEYS[:3], time.monotonic() + 0.05) == []
        assert tier.stats().num_errors_total == 0
    finally:
        store.may_go_on.set()
        tier.close()


def test_many_threads_use_one_tier(tmp_path):
    tier = Tier("disk", DiskStore(tmp_path, 1 << 20), timeout_s=30)

    def work(seed):
        rng = random.Random(seed)
        for key in rng.choices(KEYS, k=50):
            tier.put(key, StoredPage(key.encode()))
            assert [bytes(page.payload) for page in tier.get([key])] == [key.encode()]

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    tier.close()


def test_pages_are_read_where_that_is_sooner_done_and_now_and_then_to_see_whether_it_is():
    rates = Rates()
    assert rates.should_read(1000, 10**9)
    assert rates.compute_s(100) is None
    rates.computed(10, 5.0)  # too few to say anything
    rates.computed(1000, 2.0)
    rates.read(10**6, 1.0)
    assert rates.compute_s(500) == 1.0
    assert rates.should_read(1000, 1_900_000)
    assert [rates.should_read(1000, 2_100_000) for _ in range(RETRY_EVERY)] == [False] * (RETRY_EVERY - 1) + [True]
    rates.read(10**6, 0.01)
    rates.read(10**6, 0.01)
    assert rates.should_read(1000, 2_100_000)


@pytest.mark.parametrize("record", load([]).all("quire_kv_stores"), ids=lambda record: record.name)
def test_bundled_stores_keep_the_contract(record, tmp_path):
    check_kv_store(record, settings={"folder": str(tmp_path), "max_bytes": 1 << 20})
